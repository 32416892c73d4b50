"""The same without a daemon: podman, as root or as an ordinary user."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from iobench.core.errors import ImageError
from iobench.core.protocols import Say
from iobench.host.engines import podman
from iobench.host.probes import ask
from iobench.images.disk import call, complaint, running, step

NAME = "podman"


def image_id(tag: str) -> str:
    """Return the Id of an image in this user's storage, "" when there is none of this name."""
    if shutil.which("podman") is None:
        raise ImageError("podman is not installed: `requirements/install.sh containers`")
    code, found = ask([*podman(), "image", "inspect", "--format", "{{.Id}}", tag])
    return "" if code else f"sha256:{found}"


def stored(tag: str) -> Mapping[str, str]:
    """Return where the storage driver keeps an image; {} where it does not say."""
    code, data = ask([*podman(), "image", "inspect", "--format", "{{json .GraphDriver.Data}}", tag])
    return {} if code else json.loads(data) or {}


def pull(reference: str) -> str:
    """Pull an image; return "" or why that is not possible here."""
    try:
        call([*podman(), "pull", "-q", reference], f"pulling {reference}")
    except ImageError as error:
        return str(error)[-200:]
    return ""


def import_base(tar: Path, reference: str) -> None:
    """Make an image of a root filesystem."""
    call([*podman(), "import", "-q", str(tar), reference], f"importing {tar}")


def build(
    context: Path, target: str, arguments: Mapping[str, str], labels: Mapping[str, str], say: Say
) -> str:
    """Build stage ``target`` of ``context``/Dockerfile; return the image's Id."""
    argv = [*podman(), "build", "--isolation=chroot", "--network=host", "--format=docker"]
    argv += ["--layers", "--pull-never", "--target", target]
    argv += [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    argv += [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
    argv += ["--iidfile", str(context / ".iid"), str(context)]
    lines: list[str] = []
    with running(argv, f"building {target}", stderr=subprocess.STDOUT) as process:
        for line in process.stdout or ():
            lines = [*lines[-20:], line.rstrip()]
            if line.startswith(("STEP ", "iobench: ", "[")):
                say(step(line))
    if process.returncode:
        raise ImageError(f"building {target} with podman failed: {complaint(chr(10).join(lines))}")
    with contextlib.suppress(OSError):
        return (context / ".iid").read_text().strip()
    raise ImageError(f"building {target}: podman ended without an image")


def read(image: str, path: str) -> str:
    """Return the text of a file inside an image."""
    create = [*podman(), "create", "--network=none", image, "true"]
    container = call(create, "podman create").strip()
    try:
        copy = [*podman(), "cp", f"{container}:{path}", "-"]
        done = subprocess.run(copy, capture_output=True, check=False)
        tar = ["tar", "-xOf", "-"]
        out = subprocess.run(tar, input=done.stdout, capture_output=True, check=False)
        if done.returncode or out.returncode:
            raise ImageError(f"podman: no {path} in {image}")
        return out.stdout.decode()
    finally:
        call([*podman(), "rm", "--force", container], "podman rm")


def save(image: str, tag: str, out: Path) -> None:
    """Write the archive of an image to ``out``, under the name ``tag``."""
    call([*podman(), "tag", image, tag], "podman tag")
    call([*podman(), "save", "-q", "--format=docker-archive", "-o", str(out), tag], "podman save")


def load(archive: Path) -> None:
    """Load an archive into this user's storage."""
    call([*podman(), "load", "-q", "-i", str(archive)], f"podman cannot load {archive}")


def remove(tag: str) -> None:
    """Remove an image from this user's storage, unless it is in use or not there."""
    subprocess.run([*podman(), "rmi", tag], capture_output=True, check=False)


def store() -> Path:
    """Return the folder where podman keeps this user's images."""
    text = call([*podman(), "info", "--format", "json"], "podman info")
    return Path(json.loads(text)["store"]["graphRoot"])
