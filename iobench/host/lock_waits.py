"""Which files' locks a process waits for, or one that it started.  Linux, Python 3.9."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
from pathlib import Path
from typing import Dict

from iobench.host.freezer import family

#: Numbers of the system calls fcntl and flock.
CALLS = {"x86_64": (72, 73), "aarch64": (25, 32)}
#: Commands of fcntl that wait; the second is that of open file descriptions.
WAITING = (fcntl.F_SETLKW, 38)


def waited_for(pid: int) -> Dict[str, int]:
    """Return how many threads wait for a lock, by the file's path.

    Of the process and of all that it started.  Nothing where the kernel does not tell.
    """
    found: Dict[str, int] = {}
    for process in family([pid]):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            for task in Path(f"/proc/{process}/task").iterdir():
                if path := _path(task):
                    found[path] = found.get(path, 0) + 1
    return found


def words(pid: int) -> str:
    """Return in one line which lock it waits for, and what to do about it; "" for none."""
    found = waited_for(pid)
    if not found:
        return ""
    path, count = next(iter(found.items()))
    return (
        f"{count} of its threads and processes waited for a lock of {path}, which another "
        "process holds or its filesystem does not hand on: end that process, or do without "
        "locks there (lmdb: lock = false)"
    )


def _path(task: Path) -> str:
    call, *arguments = (task / "syscall").read_text().split()
    controls, locks = map(str, CALLS.get(platform.machine(), ("", "")))
    if not arguments or call not in (controls, locks):
        return ""
    fd, command = int(arguments[0], 16), int(arguments[1], 16)
    if call == controls and command not in WAITING:
        return ""
    return os.readlink(task / "fd" / str(fd))
