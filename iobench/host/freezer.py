"""Stop and continue groups of processes, so that the arms of a block take turns.

A process that does nothing else watches over what is stopped: when the driver goes, even by
``kill -9``, it continues all of it, for a stopped process cannot end by a signal that it handles.
Standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List, Sequence, Tuple

from iobench.core.clock import clock
from iobench.core.errors import CannotStop, TrialFailed

_PROC = Path("/proc")
#: States of a task that runs no more: stopped, traced and stopped, ended.
_STOPPED = b"TtZX"
_STOP_S, _POLL_S, _YIELD_S = 5.0, 1e-4, 1e-3
#: tgkill by number: glibc has no function for it before 2.30.  None: processes alone are signalled.
_TGKILL = {"x86_64": 234, "aarch64": 131, "ppc64le": 250}.get(platform.machine())
_libc = ctypes.CDLL(None)


class Freezer:
    """Stops and continues processes of this node, under the eyes of its watcher."""

    def __init__(self, watcher: subprocess.Popen[bytes]) -> None:
        self._watcher = watcher

    def watch(self, processes: Sequence[int]) -> None:
        """Name processes before they are stopped.

        Raises CannotStop where this user may not send them signals.
        """
        assert self._watcher.stdin is not None
        for pid in processes:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                continue  # it has ended since it was seen
            except PermissionError:
                raise CannotStop(
                    f"this user may not stop process {pid}, which another user owns"
                ) from None
            self._watcher.stdin.write(b"%d %s\n" % (pid, _begun(pid)))
        self._watcher.stdin.flush()

    def stop(self, processes: Sequence[int]) -> Tuple[float, float]:
        """Stop them; return when the last signal was sent and when all were seen stopped.

        Each thread is sent one: one to the process wakes a single thread, and until that has got a
        core, the others go on.
        Raises TrialFailed where one goes on.
        """
        threads = _threads(processes)
        _signal(processes, signal.SIGSTOP)
        if _TGKILL is not None:
            for pid, thread in threads:
                _libc.syscall(_TGKILL, pid, thread, int(signal.SIGSTOP))
        sent = clock()
        running = _running(_tasks(processes))
        while running:
            if clock() > sent + _STOP_S:
                raise TrialFailed(f"{running[0]} did not stop within {_STOP_S:g} s")
            if clock() < sent + _YIELD_S:
                os.sched_yield()  # to one that waits for this very core to stop
            else:
                time.sleep(_POLL_S)
            # and those that were started meanwhile
            running = _running(running) or _running(_tasks(processes))
        return sent, clock()

    def go(self, processes: Sequence[int]) -> Tuple[float, float]:
        """Continue them; return when the first signal was sent and when the last.

        What goes on may keep this process from its core for a while: the clock is read before each.
        """
        begun = clock()
        return begun, max(begun, _signal(processes, signal.SIGCONT))


@contextlib.contextmanager
def freezer() -> Iterator[Freezer]:
    """Yield what stops processes; nothing that it stopped stays so, however this process ends."""
    command = [sys.executable, "-I", "-S", "-c", _WATCHER]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert watcher.stdin is not None
    try:
        yield Freezer(watcher)
    finally:
        with contextlib.suppress(BrokenPipeError):
            watcher.stdin.close()
        watcher.wait()


def family(processes: Sequence[int]) -> List[int]:
    """Return these processes and all that they started, parents first."""
    children: Dict[int, List[int]] = {}
    for folder in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found = list(processes)
    for pid in found:  # it grows meanwhile
        found += sorted(set(children.get(pid, [])) - set(found))
    return found


def _signal(processes: Sequence[int], number: signal.Signals) -> float:
    """Send a signal to all, a process group at once; return when the last was sent.

    The first to go on would hold up the sender, so a rank leads a group
    (:mod:`iobench.host.parent_watch`) that its loader's processes are in.
    """
    leaders, last = set(), 0.0
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # ended; another's by now
            leader = os.getpgid(pid)
            if leader in leaders:
                continue
            last = clock()
            if leader in processes:
                leaders.add(leader)
                os.killpg(leader, number)
            else:
                os.kill(pid, number)
    return last


def _threads(processes: Sequence[int]) -> List[Tuple[int, int]]:
    """Return (process, thread) of every thread of these processes."""
    found: List[Tuple[int, int]] = []
    for pid in processes:
        with contextlib.suppress(OSError):
            found += [(pid, int(thread)) for thread in os.listdir(f"/proc/{pid}/task")]
    return found


def _tasks(processes: Sequence[int]) -> List[str]:
    """Return where the state of every thread of these processes stands."""
    return [f"/proc/{pid}/task/{thread}/stat" for pid, thread in _threads(processes)]


def _running(tasks: Sequence[str]) -> List[str]:
    return [task for task in tasks if not _stopped(task)]


def _stopped(task: str) -> bool:
    """Return whether the thread is stopped, or has ended."""
    try:
        with open(task, "rb", 0) as file:
            return file.read(512).rpartition(b")")[2].split()[0] in _STOPPED
    except OSError:
        return True


def _begun(pid: int) -> bytes:
    """Return when a process was started, in ticks: another one of this number was not."""
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[19]
    return b"0"


#: Continues, when its standard input ends, every process that was named there and is still it.
_WATCHER = """
import os, signal, sys
for line in sys.stdin.buffer.readlines():
    pid, begun = line.split()
    try:
        with open(b"/proc/%s/stat" % pid, "rb") as file:
            if file.read().rpartition(b")")[2].split()[19] == begun:
                os.kill(int(pid), signal.SIGCONT)
    except OSError:
        pass
"""
