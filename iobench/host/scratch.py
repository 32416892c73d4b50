"""Folders for what lives as long as a trial; what a killed driver leaves of them is removed.

A folder is locked while its maker lives, even where that is in another container; the next suite
on the node takes away those that nobody holds.  Nodes do not see each other's locks, so the name
holds the node's.  Standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Iterable, Iterator

_MADE, _LOCK = "iobench-", ".held"
_PREFIX = f"{_MADE}work-{socket.gethostname()}-"


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a folder for temporary files; remove it at the end.

    It gets its name when it is locked: before that nobody takes it for a left one.
    """
    made = Path(tempfile.mkdtemp(prefix=_MADE))
    try:
        lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with contextlib.suppress(OSError):  # then nobody else can lock it either
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            named = made.with_name(_PREFIX + made.name[len(_MADE) :])
            made = made.rename(named)
            yield made
        finally:
            os.close(lock)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def remove(patterns: Iterable[str]) -> None:
    """Remove folders of this user's in the temporary folder, and what is then empty above them."""
    top = Path(tempfile.gettempdir())
    for left in (found for pattern in patterns for found in top.glob(pattern)):
        with contextlib.suppress(OSError):
            if left.stat().st_uid == os.geteuid() and not left.is_symlink():
                shutil.rmtree(left)
                left.parent.rmdir()


def sweep() -> None:
    """Remove what killed drivers of this user left."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if left.stat().st_uid == os.geteuid() and not left.is_symlink():
                _remove_unheld(left)


def _remove_unheld(left: Path) -> None:
    """Remove a folder; raises OSError where somebody holds it."""
    lock = os.open(left / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(left)
    finally:
        os.close(lock)
