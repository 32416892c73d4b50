"""Folders made for one suite, or a trial: locked while it runs, removed then or by the next suite.

What a killed suite left is known by a lock that nobody holds, and by its name: nodes may not see
each other's locks, so other hosts' folders are never touched.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

from iobench.core.cases import Dataset
from iobench.core.errors import DatasetError, TrialFailed
from iobench.core.protocols import Say
from iobench.host import files
from iobench.host.agent import LOCAL


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
        root.mkdir(0o700, parents=True)  # the data may be closed to others where they lie
    except OSError as error:
        raise DatasetError(
            f"{what}: cannot write to {root.parent}: {error.strerror}; choose another folder"
        ) from error
    try:
        with files.hold(root):
            yield root
    finally:
        _remove(root)


@contextlib.contextmanager
def beside(dataset: Dataset) -> Iterator[Path]:
    """Make a folder on the mount of the data, for a trial that writes.

    Raises TrialFailed where there is none.
    """
    parent = Path(dataset.root).parent
    if dataset.in_place and not LOCAL.same_mount(parent, Path(dataset.jpeg_root)):
        raise TrialFailed(
            f"the files are read in place, and {parent} is on another mount: nothing is written "
            "among files of your own"
        )
    name = f"{PREFIX}{dataset.digest[:8]}-{secrets.token_hex(4)}"
    try:
        with held(parent / name, "files to create and remove") as root:
            yield root
    except DatasetError as error:
        raise TrialFailed(str(error)) from None


def sweep(parents: Iterable[Path], say: Say) -> None:
    """Remove what suites of this user on this host that were killed left in these folders."""
    for found in sorted(p for parent in parents for p in parent.glob(f"{PREFIX}*")):
        with contextlib.suppress(DatasetError, OSError), files.hold(found):  # else it runs
            say(f"removing {found}, which a suite that was killed left")
            _remove(found)


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
