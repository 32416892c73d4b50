"""Placements that are folders: a copy in memory or on another disk, an image's tree with the data.

A folder is locked for as long as its suite runs, so what a killed suite left is known by its name
and by a lock that nobody holds.  A network filesystem shares no such lock between its nodes: the
name tells this host's folders from those of others, which are never touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from iobench import dataset as datasets
from iobench.errors import DatasetError
from iobench.model import Placement
from iobench.placements.content import Content, at
from iobench.protocols import DATA_INSIDE, Say


def prefix(host: str) -> str:
    """Return how the names of what this user places on a host begin; allowed in an image's name."""
    words = re.findall("[a-z0-9]+", host.lower())
    return f"iobench-placed-{os.getuid()}-{'.'.join(words) or 'host'}-"


PREFIX = prefix(socket.gethostname())


@contextlib.contextmanager
def held(root: Path, what: str) -> Iterator[Path]:
    """Make ``root``, empty and locked; whatever happens it is gone afterwards."""
    _remove(root)
    try:
        root.mkdir(parents=True)
    except OSError as error:
        raise DatasetError(
            f"{what}: cannot write to {root.parent}: {error.strerror}; choose another folder"
        ) from error
    fd = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield root
    finally:
        _remove(root)
        os.close(fd)


def sweep(parents: Iterable[Path], say: Say) -> None:
    """Remove what suites of this user on this host that were killed left in these folders."""
    for found in sorted(p for parent in parents for p in parent.glob(f"{PREFIX}*")):
        with contextlib.suppress(DatasetError, OSError), datasets.hold(found):  # else it runs
            say(f"removing {found}, which a suite that was killed left")
            _remove(found)


def copy(place: Placement, data: Content) -> Placement:
    """Copy the data; the marker comes last, when all of it is on the device."""
    root = Path(place.root)
    _fill(root, data)
    datasets.finish(at(data.dataset, root))
    return dataclasses.replace(place, files=str(root))


def tree(place: Placement, base: Path, data: Content) -> Placement:
    """Make an image's tree with the data in it: hard links to the image's files, copies of ours.

    Raises DatasetError where links are not allowed.
    """
    image = Path(place.root, "rootfs")
    done = subprocess.run(
        ["cp", "-a", "--link", str(base), str(image)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise DatasetError(
            f"placement image: cannot link the files of {base} ({said}): own them, or run the "
            "image as a SIF"
        )
    root = image / DATA_INSIDE.lstrip("/")
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o755)
    _fill(root, data)
    datasets.settle(root)
    return dataclasses.replace(place, image=str(image), files=str(root))


def _fill(root: Path, data: Content) -> None:
    shutil.copy2(Path(data.dataset.root, datasets.INDEX), root)
    made: set[Path] = set()
    for name, source in zip(data.names, data.files, strict=True):
        target = root / name
        if target.parent not in made:
            target.parent.mkdir(parents=True, exist_ok=True)
            made.add(target.parent)
        shutil.copy2(source, target)


def _remove(path: Path) -> None:
    """Remove a folder, also where an image made folders in it that cannot be written."""

    if path.is_dir():
        _open(path)
        shutil.rmtree(path, ignore_errors=True)


def _open(folder: Path) -> None:
    """Let the owner of a folder and of those below it look into them and write."""
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                _open(Path(entry.path))
