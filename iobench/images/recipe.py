"""The recipe of an image: the files that decide its content, and their digest."""

from __future__ import annotations

import hashlib
import platform
import re
from pathlib import Path

import iobench
from iobench.core.errors import ImageError
from iobench.host.probes import ask
from iobench.images.model import recipe_of

#: Raised by hand when the same recipe must give another image (the digest covers it).
_GENERATION = 1
#: Debian's suite that every image is based on; its glibc is one that hosts are likely to have.
SUITE = "bookworm"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le"}


def root() -> Path:
    """Return the folder of this clone. Raises ImageError where there is no Dockerfile."""
    folder = Path(iobench.__file__).parent.parent
    if not (folder / "Dockerfile").exists():
        raise ImageError(
            f"images are built from a clone or an unpacked bundle, and {folder} is neither: it has "
            "no Dockerfile"
        )
    return folder


def architecture() -> str:
    """Return this machine's architecture in the images' words: amd64, arm64 ..."""
    return _MACHINES.get(platform.machine(), platform.machine())


def files(name: str) -> list[Path]:
    """Return the files that the recipe of ``name`` consists of, Dockerfile first."""
    wanted = recipe_of(name).files
    return [root() / "Dockerfile", *(root() / "requirements" / file for file in wanted)]


def lock(suite: str) -> Path:
    """Return the file that locks the packages taken from a suite of Debian's."""
    return root() / "requirements" / f"debian-{suite}.txt"


def digest(name: str) -> str:
    """Return 16 hex digits of what decides an image's content, of the Dockerfile its stages."""
    dockerfile, *others = files(name)
    sha = hashlib.sha256(f"{_GENERATION} {name} {architecture()}\n".encode())
    sha.update(stages(dockerfile.read_text(), name).encode())
    for path in others:
        sha.update(f"\n{path.name}\n".encode())
        sha.update(path.read_bytes())
    return sha.hexdigest()[:16]


def stages(dockerfile: str, target: str) -> str:
    """Return the part of a Dockerfile that ``target`` needs, comments left out.

    Docker's legacy builder runs every stage above its target, needed or not.
    Raises ImageError when there is no such stage.
    """
    lines = [line for line in dockerfile.splitlines() if line and not line.startswith("#")]
    text = "\n".join(lines)
    head, *parts = re.split(r"^(?=FROM )", text, flags=re.M)
    bodies: dict[str, str] = {}
    needs: dict[str, set[str]] = {}
    for part in parts:
        first = re.match(r"FROM (\S+) AS (\S+)$", part, flags=re.M)
        if first is None:
            raise ImageError(f"Dockerfile: a stage without a name: {part.splitlines()[0]}")
        bodies[first[2]] = part
        needs[first[2]] = {first[1], *re.findall(r"--from=(\S+)", part)} & set(bodies)
    if target not in bodies:
        raise ImageError(f"Dockerfile: no stage {target}; there are: {', '.join(bodies)}")
    wanted, todo = set(), [target]
    while todo:
        stage = todo.pop()
        if stage not in wanted:
            wanted.add(stage)
            todo += needs[stage]
    return head + "".join(body for stage, body in bodies.items() if stage in wanted)


def revision(top: Path) -> str:
    """Return the commit of the clone at ``top``, ``+changes`` where files differ from it."""
    git = ["git", "-C", str(top), "describe", "--always", "--abbrev=40", "--exclude=*"]
    code, commit = ask([*git, "--dirty=+changes"])
    return "unknown (not a git clone)" if code else commit
