"""A trial's work folder on a node whose ``/tmp`` is not the driver's: made, and removed again.

What a killed agent leaves of one is removed by the next agent of this user on that node.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path
from typing import Iterator, Mapping

from iobench.core.errors import TrialFailed


@contextlib.contextmanager
def made(folder: Path, texts: Mapping[str, str], links: Mapping[str, str]) -> Iterator[None]:
    """Make ``folder`` with small files and links, for its owner alone; remove it at the end.

    ``texts``, ``links``: name below the folder -> content, target.  A folder that is there already,
    because the nodes share it, is the driver's: it is only completed.  Raises TrialFailed where it
    is not this user's own.
    """
    own = _make(folder)
    held = contextlib.ExitStack()
    if own:
        with contextlib.suppress(OSError):  # then nobody else can lock it either
            held.callback(os.close, _locked(folder / _mark()))
    try:
        for name, text in texts.items():
            (folder / name).parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileExistsError):
                fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with open(fd, "w") as file:
                    file.write(text)
        for name, target in links.items():
            (folder / name).parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileExistsError):
                (folder / name).symlink_to(target)
        yield
    finally:
        held.close()
        if own:
            shutil.rmtree(folder, ignore_errors=True)


def sweep() -> None:
    """Remove what killed agents of this user left on this node."""
    for mark in Path(tempfile.gettempdir()).glob(f"iobench-work-*/{_mark()}"):
        with contextlib.suppress(OSError):
            if mark.parent.stat().st_uid == os.geteuid() and not mark.parent.is_symlink():
                os.close(_locked(mark))
                shutil.rmtree(mark.parent)


def _mark() -> str:
    """Return the name of the file that an agent holds: nodes with one /tmp see each other's."""
    return f".agent-{socket.gethostname()}"


def _locked(mark: Path) -> int:
    """Return the descriptor of a file that this process holds; OSError where another does."""
    lock = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _make(folder: Path) -> bool:
    """Make the folder; return whether it is new."""
    try:
        folder.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise TrialFailed(f"{folder} is there already and not this user's own folder") from None
        return False
    except OSError as error:
        raise TrialFailed(
            f"{folder} cannot be made on this node ({error.strerror}): set TMPDIR to a folder that "
            "every node has"
        ) from None
    return True
