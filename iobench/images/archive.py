"""An image archive as `docker save` writes it: read its configuration, unpack its layers.

Pure Python, without root: owners are the caller's, device nodes are left out, setuid bits dropped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from iobench.core.errors import ImageError
from iobench.images.disk import discard

_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_CHUNK = 1 << 20


class Contents(NamedTuple):
    """What an archive says about itself."""

    digest: str  # sha256:... of the configuration
    config: Mapping[str, Any]
    layers: tuple[str, ...]  # members of the archive, lowest first


def contents(path: Path) -> Contents:
    """Read an archive's manifest and configuration.  Raises ImageError unless both are whole."""
    with _opened(path) as archive:
        manifest = json.loads(_file(archive, "manifest.json").read())
        if len(manifest) != 1:
            raise ImageError(f"{path} holds {len(manifest)} images: export one at a time")
        raw = _file(archive, manifest[0]["Config"]).read()
        names = tuple(manifest[0]["Layers"])
        for name in names:
            archive.getmember(name)
    digest = "sha256:" + hashlib.sha256(raw).hexdigest()
    return Contents(digest, json.loads(raw), names)


def check(path: Path) -> None:
    """Compare every layer's digest, which apptainer and podman do not.  Raises ImageError."""
    found = contents(path)
    with _opened(path) as archive:
        for name, diff in zip(found.layers, found.config["rootfs"]["diff_ids"], strict=True):
            _compare(path, name, _Hashing(_file(archive, name)), diff)


def unpack(path: Path, root: Path, progress: Callable[[int, int], None] | None = None) -> None:
    """Unpack the layers of the archive at ``path`` under ``root``, which must not exist.

    Every layer's digest is compared with the configuration's.  ``progress(done, layers)`` is
    called after each.  Raises ImageError for a damaged archive; an existing ``root`` is OSError.
    """
    found = contents(path)
    wanted = found.config["rootfs"]["diff_ids"]
    root.mkdir()
    top = Path(os.path.realpath(root))
    modes: dict[Path, int] = {}
    with _opened(path) as archive:
        for done, (name, diff) in enumerate(zip(found.layers, wanted, strict=True), 1):
            hashed = _Hashing(_file(archive, name))
            with tarfile.open(fileobj=cast(IO[bytes], hashed), mode="r|*") as layer:
                _apply(layer, top, modes)
            _compare(path, name, hashed, diff)
            if progress:
                progress(done, len(wanted))
    for folder, mode in sorted(modes.items(), reverse=True):
        if folder.is_dir():
            folder.chmod(mode)


def _compare(path: Path, name: str, hashed: _Hashing, wanted: str) -> None:
    """Read a layer to its end.  Raises ImageError when its digest is another one."""
    while hashed.read(_CHUNK):
        pass
    if not hashed.compressed and hashed.digest() != wanted:
        raise ImageError(
            f"{path} is damaged: layer {name} has digest {hashed.digest()}, not {wanted}; remove "
            "it and `iobench image build`"
        )


class _Hashing:
    """A file that takes the digest of what is read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sha = hashlib.sha256()
        self._first = b""

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._first = self._first or data[:4]
        self._sha.update(data)
        return data

    @property
    def compressed(self) -> bool:  # then the recorded digest is that of what it unpacks to
        return self._first[:2] == b"\x1f\x8b" or self._first == b"\x28\xb5\x2f\xfd"

    def digest(self) -> str:
        return "sha256:" + self._sha.hexdigest()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path) as archive:
            yield archive
    except FileNotFoundError as error:
        raise ImageError(f"{path} is not there: `iobench image build`") from error
    except (tarfile.TarError, KeyError, ValueError, EOFError) as error:
        raise ImageError(
            f"{path} is not a whole image archive ({error}): remove it and `iobench image build`"
        ) from error


def _file(archive: tarfile.TarFile, member: tarfile.TarInfo | str) -> IO[bytes]:
    file = archive.extractfile(member)  # follows a link to a layer that is stored once
    if file is None:
        raise KeyError(f"{member} is not a file")
    return file


def _apply(layer: tarfile.TarFile, root: Path, modes: dict[Path, int]) -> None:
    fresh: set[Path] = set()  # made by this layer: an opaque folder keeps these
    for item in layer:
        parent = within(root, os.path.dirname(item.name))
        name = os.path.basename(item.name.rstrip("/"))
        if name in ("", "."):
            continue
        if name == _OPAQUE:
            for entry in list(parent.iterdir()) if parent.is_dir() else []:
                if entry not in fresh:
                    discard(entry)
        elif name.startswith(_WHITEOUT):
            discard(parent / name[len(_WHITEOUT) :])
        else:
            path = parent / name
            _make(layer, item, path, root, modes)
            fresh |= {path, *path.parents}


def _make(
    layer: tarfile.TarFile, item: tarfile.TarInfo, path: Path, root: Path, modes: dict[Path, int]
) -> None:
    for folder in path.parents:
        if folder == root or folder.is_dir():
            break
        folder.unlink(missing_ok=True)  # a file below, a folder here
    if not (item.isdir() and path.is_dir() and not path.is_symlink()):
        discard(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if item.isdir():
        path.mkdir(exist_ok=True)
        modes[path] = (item.mode & 0o777) | 0o700  # at the end: it may forbid what still comes
        return
    if item.issym():
        path.symlink_to(item.linkname)
    elif item.islnk():
        source = within(root, os.path.dirname(item.linkname))
        os.link(source / os.path.basename(item.linkname), path, follow_symlinks=False)
    elif item.isreg():
        with open(path, "wb") as file:
            shutil.copyfileobj(_file(layer, item), file, _CHUNK)
        path.chmod((item.mode & 0o777) | 0o600)
        os.utime(path, (item.mtime, item.mtime))


def within(root: Path, name: str) -> Path:
    """Return what ``name`` is below ``root``, links followed as in a root of their own.

    Raises ImageError where that would leave ``root`` or goes in circles.
    """
    path, todo, links = root, [part for part in name.split("/") if part], 0
    while todo:
        part = todo.pop(0)
        if part == ".":
            continue
        if part == "..":
            path = path if path == root else path.parent
            continue
        step = path / part
        if step.is_symlink():
            links += 1
            if links > 40:
                raise ImageError(f"the image's {name} is a circle of links")
            target = os.readlink(step)
            path = root if target.startswith("/") else path
            todo = [piece for piece in target.split("/") if piece] + todo
        else:
            path = step
    return path
