"""Notice that processes wait for a filesystem that does not answer, and say which.

A task that has been in one system call for seconds, other than one that waits for messages, makes
this process ask every mount by a process of its own each: what is asked may never come back.
Python 3.9.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Tuple

from iobench.core.clock import clock
from iobench.host import mounts
from iobench.host.freezer import family

#: A mount that was asked has this time to answer, seconds.
ANSWER_S = 5.0
#: Where a task waits for other processes, for time or for the network: beginnings of wchan names.
IDLE = (
    "0", "futex", "do_wait", "poll_", "do_poll", "do_sys_poll", "ep_poll", "do_epoll", "do_select",
    "pipe_", "anon_pipe", "hrtimer", "do_nanosleep", "do_sigtimedwait", "unix_", "sk_wait",
    "wait_woken", "inet_", "do_signal_stop", "get_signal", "ptrace_stop", "schedule_timeout",
)  # fmt: skip
#: Filesystems without a server or a disk, which always answer.
VIRTUAL = frozenset(
    ("proc", "sysfs", "cgroup", "cgroup2", "tmpfs", "devtmpfs", "devpts", "mqueue", "debugfs",
     "tracefs", "securityfs", "bpf", "hugetlbfs", "pstore", "configfs", "fusectl", "binfmt_misc",
     "nsfs", "ramfs", "autofs", "rpc_pipefs", "efivarfs", "selinuxfs")
)  # fmt: skip


class Unanswered:
    """Watches a process and those that it started.

    ``say`` gets a sentence for each mount that does not answer.
    """

    def __init__(self, pid: int, say: Callable[[str], object]) -> None:
        self._pid, self._say = pid, say
        self._waits: Dict[str, List[str]] = {}
        self._asked: Dict[str, Tuple[int, float, str]] = {}
        self._silent: Dict[str, float] = {}

    def look(self) -> bool:
        """Look once, every few seconds; return whether a mount does not answer now."""
        for point, (asker, asked, fstype) in list(self._asked.items()):
            if os.waitpid(asker, os.WNOHANG)[0]:
                del self._asked[point]
                if (since := self._silent.pop(point, None)) is not None:
                    self._say(
                        f"the filesystem at {point} answers again, after {clock() - since:.0f} s"
                    )
            elif point not in self._silent and clock() > asked + ANSWER_S:
                self._silent[point] = asked
                self._say(
                    f"the filesystem at {point} ({fstype}) has not answered for "
                    f"{clock() - asked:.0f} s: waiting until it does"
                )
        if self._held():
            for mount in mounts.parse(mounts.MOUNTINFO.read_text()):
                if mount.fstype not in VIRTUAL and mount.mount_point not in self._asked:
                    asker = _ask(mount.mount_point)
                    self._asked[mount.mount_point] = asker, clock(), mount.fstype
        return bool(self._silent)

    def close(self) -> None:
        """End what still asks; the kernel lets it go when the filesystem answers, at the latest."""
        for asker, _, _ in self._asked.values():
            os.kill(asker, signal.SIGKILL)
            os.waitpid(asker, os.WNOHANG)
        self._asked.clear()

    def _held(self) -> bool:
        """Return whether a task is where it was at the last look, and not idle."""
        before, self._waits = self._waits, dict(_waiting(self._pid))
        return any(before.get(task) == where for task, where in self._waits.items())


def _waiting(pid: int) -> Iterator[Tuple[str, List[str]]]:
    """Yield the folder in /proc of each task that waits in the kernel, and what changes when it
    goes on: its context switches.

    All threads of the process and of all that it started: loaders read in threads.
    """
    for process in family([pid]):
        with contextlib.suppress(OSError):  # it has ended
            for task in Path(f"/proc/{process}/task").iterdir():
                if not (task / "wchan").read_text().startswith(IDLE):
                    lines = (task / "status").read_text().splitlines()
                    yield f"{task}", [line for line in lines if "ctxt_switches" in line]


def _ask(point: str) -> int:
    """Start a process that ends when the filesystem there has answered; return its id."""
    if asker := os.fork():
        return asker
    with contextlib.suppress(OSError):
        os.statvfs(point)
    os._exit(0)
