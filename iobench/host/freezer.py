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
from typing import Dict, Iterator, List, Sequence, Set, Tuple

from iobench.core.clock import clock
from iobench.core.errors import CannotStop, TrialFailed
from iobench.host.io_counters import stat_fields

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
        #: CPU time of each (process, thread) when it was first seen stopped, in ticks.
        self._first_ticks: Dict[Tuple[int, int], int] = {}
        #: The threads of a process that have used more since.
        self._worked: Dict[int, Set[int]] = {}

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
        """Stop them; return when those that work were sent the signal and when all had stopped.

        First the processes are sent one, their main threads take it, then the other threads that
        work: until one has got a core in order to stop, the others would go on.  Those that slept
        all the time are sent theirs last: on large nodes there are hundreds, and nothing works
        meanwhile.
        Raises TrialFailed where one goes on.
        """
        _signal(processes, signal.SIGSTOP)
        for pid in processes:
            for thread in self._working(pid):
                _stop_thread(pid, thread)
        sent = clock()
        running = _threads(processes)
        for pid, thread in running:
            _stop_thread(pid, thread)
        while running := self._running(running) or self._running(_threads(processes)):
            if clock() > sent + _STOP_S:
                pid, thread = running[0]
                raise TrialFailed(
                    f"thread {thread} of process {pid} did not stop within {_STOP_S:g} s"
                )
            if clock() < sent + _YIELD_S:
                os.sched_yield()  # to one that waits for this very core to stop
            else:
                time.sleep(_POLL_S)
        return sent, clock()

    def go(self, processes: Sequence[int]) -> Tuple[float, float]:
        """Continue them; return when the first signal was sent and when the last.

        What goes on may keep this process from its core for a while: the clock is read before each.
        """
        begun = clock()
        return begun, max(begun, _signal(processes, signal.SIGCONT))

    def _working(self, pid: int) -> Set[int]:
        """Return the threads, beside the main one, that have worked since they were first stopped;
        all, where the process is not known to have worked.
        """
        found = self._worked.get(pid) or {thread for _, thread in _threads([pid])}
        return found - {pid}

    def _running(self, threads: Sequence[Tuple[int, int]]) -> List[Tuple[int, int]]:
        """Return those of these (process, thread) that are not stopped and have not ended."""
        return [(pid, thread) for pid, thread in threads if not self._stopped(pid, thread)]

    def _stopped(self, pid: int, thread: int) -> bool:
        try:
            fields = stat_fields(f"/proc/{pid}/task/{thread}/stat")
        except OSError:
            return True
        if fields[0] not in _STOPPED:
            return False
        ticks = int(fields[11]) + int(fields[12])
        if ticks > self._first_ticks.setdefault((pid, thread), ticks):
            self._worked.setdefault(pid, set()).add(thread)
        return True


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
            parent = int(stat_fields(f"{folder}/stat")[1])
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


def _stop_thread(pid: int, thread: int) -> None:
    """Send a thread a SIGSTOP, which stops its whole process; one that has ended is passed over."""
    if _TGKILL is not None:
        _libc.syscall(_TGKILL, pid, thread, int(signal.SIGSTOP))


def _begun(pid: int) -> bytes:
    """Return when a process was started, in ticks: another one of this number was not."""
    with contextlib.suppress(OSError):
        return stat_fields(f"/proc/{pid}/stat")[19]
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
