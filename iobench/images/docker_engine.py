"""Build, save and load by a Docker daemon (docker-py), wherever DOCKER_HOST says it is."""

from __future__ import annotations

import contextlib
import io
import tarfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from iobench.core.errors import ImageError
from iobench.core.protocols import Say
from iobench.images import docker_daemon
from iobench.images.disk import step

NAME = "docker"
_BUILD_S = 3600
_CHUNK = 1 << 20


def image_id(tag: str) -> str:
    """Return the Id of an image the daemon has, "" when it has none of this name."""
    import docker

    with _client() as client:
        try:
            return str(client.images.get(tag).id)
        except docker.errors.ImageNotFound:
            return ""


def stored(tag: str) -> Mapping[str, str]:
    """Return where the daemon's storage driver keeps an image; {} where it does not say."""
    with _client() as client:
        return (client.images.get(tag).attrs.get("GraphDriver") or {}).get("Data") or {}


def pull(reference: str) -> str:
    """Pull an image; return "" or why that is not possible here."""
    try:
        with _client(60) as client:
            client.api.pull(reference)
    except (OSError, ImageError) as error:
        return str(error)[:200]
    return "" if image_id(reference) else "pulled, and not there"


def import_base(tar: Path, reference: str) -> None:
    """Make an image of a root filesystem."""
    repository, _, tag = reference.partition(":")
    with _client() as client, open(tar, "rb") as file:
        client.api.import_image_from_data(file, repository=repository, tag=tag)


def build(
    context: Path, target: str, arguments: Mapping[str, str], labels: Mapping[str, str], say: Say
) -> str:
    """Build a stage of ``context``/Dockerfile, return its Id; ImageError quotes a failing step."""
    lines: list[str] = []
    found = ""
    with _client(_BUILD_S) as client:
        stream = client.api.build(
            fileobj=_stream(context),
            custom_context=True,
            target=target,
            buildargs=dict(arguments),
            labels=dict(labels),
            network_mode="host",
            rm=True,
            forcerm=True,
            decode=True,
        )
        for part in stream:
            if "error" in part:
                tail = "; ".join(line for line in lines[-4:] if line)
                raise ImageError(f"building {target} failed: {part['error'].strip()} ({tail})")
            found = part.get("aux", {}).get("ID", found)
            for line in part.get("stream", "").splitlines():
                lines.append(line.strip())
                if line.startswith(("Step ", "iobench: ")):
                    say(step(line))
    if not found:
        raise ImageError(f"building {target}: the daemon ended without an image; see its log")
    return found


def read(image: str, path: str) -> str:
    """Return the text of a file inside an image. Raises ImageError when it is not there."""
    with _client() as client:
        container = client.containers.create(image, command=["true"], network_mode="none")
        try:
            chunks, _ = container.get_archive(path)
            with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
                member = archive.extractfile(archive.next() or path)
                assert member is not None
                return member.read().decode()
        finally:
            container.remove(force=True)


def save(image: str, tag: str, out: Path) -> None:
    """Write the archive of an image to ``out``, under the name ``tag``."""
    repository, _, label = tag.partition(":")
    with _client(_BUILD_S) as client:
        client.api.tag(image, repository, label)
        with open(out, "wb") as file:
            file.writelines(client.api.get_image(tag, chunk_size=_CHUNK))


def load(archive: Path) -> None:
    """Load an archive into the daemon's store."""
    with _client(_BUILD_S) as client, open(archive, "rb") as file:
        for part in client.api.load_image(iter(partial(file.read, _CHUNK), b"")):
            if isinstance(part, dict) and "error" in part:
                raise ImageError(f"docker cannot load {archive}: {part['error']}")


def remove(tag: str) -> None:
    """Remove an image from the daemon's store, unless it is in use or not there."""
    import docker

    with _client() as client, contextlib.suppress(docker.errors.APIError):
        client.images.remove(tag)


def tidy(folder: Path) -> None:
    """Remove the stages that no image needs, where the store is iobench's own, below ``folder``."""
    if store().is_relative_to(folder.resolve()):
        with _client() as client:
            client.images.prune(filters={"dangling": True})


def store() -> Path:
    """Return the folder where the daemon keeps its images."""
    with _client() as client:
        return Path(str(client.info().get("DockerRootDir", "/")))


@contextlib.contextmanager
def _client(timeout_s: float = 600) -> Iterator[Any]:
    """A client; what goes wrong on the way is an ImageError with the remedy."""
    import docker

    if reason := docker_daemon.docker_answers():
        raise ImageError(f"no Docker daemon answers: {reason}")
    try:
        with contextlib.closing(docker.from_env(timeout=timeout_s)) as client:
            yield client
    except docker.errors.APIError as error:
        words = str(error.explanation or error)
        if "no space left" in words:
            words += "; free some space where the daemon keeps its images"
        raise ImageError(f"docker: {words}") from error
    except OSError as error:
        if error.errno is not None:  # a file of ours; what went wrong with the daemon has none
            raise
        raise ImageError(
            f"the Docker daemon went away ({error}): start it again and repeat; nothing half-done "
            "is left"
        ) from error
    except docker.errors.DockerException as error:
        raise ImageError(f"no Docker daemon answers: {error}") from error


def _stream(context: Path) -> Iterator[bytes]:
    """Yield the build context as a tar file, times and owners left out, never whole in memory."""
    for path in sorted(p for p in context.rglob("*") if p.is_file()):
        item = tarfile.TarInfo(str(path.relative_to(context)))
        item.size = path.stat().st_size
        item.mode = 0o755 if path.suffix == ".sh" else 0o644
        yield item.tobuf(tarfile.GNU_FORMAT)
        with open(path, "rb") as file:
            yield from iter(partial(file.read, _CHUNK), b"")
        yield b"\0" * (-item.size % tarfile.BLOCKSIZE)
    yield b"\0" * tarfile.BLOCKSIZE * 2
