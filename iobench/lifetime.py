"""A worker's life beside its driver: how long it has run, whom it waits for, when it ends.

Worker side: standard library only, Python 3.9.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import stat
import time
from pathlib import Path
from typing import Any

from iobench.errors import IobenchError
from iobench.protocols import HELD

#: Seconds between looks for the driver's word.
_POLL_S = 0.002
#: Seconds between looks for another rank.
_MEET_S = 0.0005
#: A FIFO in the work folder that the driver holds open, for ranks: a launcher gives its own
#: standard input to one rank at most.
FIFO = "held"
_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER, _ANYBODY = 0x59616D61, -1


def end_with_driver(held: Path) -> None:
    """End when the driver does, even by ``kill -9``.  ``held``: its FIFO for ranks, if there is."""
    if not _end_with_fifo(held) and not _end_with_input():
        _die_with_parent()


def end_with_starter() -> None:
    """End this process group when whoever started it does, even by ``kill -9``.

    For a process that leads its group, and whose standard input is a pipe that the starter holds.
    When that closes the kernel itself sends SIGKILL: not even a long call delays it.
    """
    fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(0, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if _closed():  # it may have gone before
        os.killpg(0, signal.SIGKILL)


def wait_for(word: Path, parent: int) -> None:
    """Return when the file is there; raise IobenchError when the ``parent`` has gone."""
    while not word.exists():
        if os.getppid() != parent:
            raise IobenchError("the driver has gone; nothing was measured")
        time.sleep(_POLL_S)


def meet(folder: Path, rank: int, world_size: int) -> None:
    """Return when every rank has come here: within a millisecond of each other on idle cores.

    Who has failed does not come; its launcher then ends those who wait.
    """
    (folder / f"begin.{rank}").touch()
    others = [folder / f"begin.{other}" for other in range(world_size)]
    while not all(path.exists() for path in others):
        time.sleep(_MEET_S)


def agree(folder: Path, rank: int, value: int) -> int:
    """Return rank 0's value on every rank, once in a process's life."""
    said = folder / "agreed"
    if rank == 0:
        partial = said.with_suffix(".tmp")
        partial.write_text(str(value))
        partial.rename(said)
        return value
    while not said.exists():
        time.sleep(_MEET_S)
    return int(said.read_text())


def let_trace(path: Path) -> None:
    """Say who is to be traced, as numbered in here, and let the driver: Yama forbids it to others.

    The driver's strace is no parent of this process.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_ANYBODY))
    path.write_text(str(os.getpid()))


def process_age_s() -> float:
    """Return seconds since this process was started (10 ms ticks)."""
    ticks = os.sysconf("SC_CLK_TCK")
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - started / ticks


def _die_with_parent() -> None:
    """Let the kernel end this process when the one that started it dies, even by ``kill -9``.

    Not beside :func:`_end_with_input`: it would kill this process alone, before it takes its
    loader processes with it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with_fifo(held: Path) -> bool:
    """End, with all loader processes, when the driver does: for a rank that a launcher started.

    The driver holds the FIFO's other end.  When that closes, the kernel itself kills this rank's
    process group: not even a long call into a framework delays it.  Return False without a FIFO.
    """
    try:
        end = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    os.environ.pop(HELD, "")
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)  # a launcher that leaves its ranks in its own group
    fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(end, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
    try:
        os.read(end, 1)
    except BlockingIOError:  # somebody holds it, and says nothing
        return True
    os.killpg(0, signal.SIGKILL)  # the driver had gone before
    return True


def _end_with_input() -> bool:
    """End, with all loader processes, when the driver does: even by ``kill -9``, in a container.

    The driver holds the other end of standard input, a pipe.  When that closes the kernel sends
    SIGIO: no thread waits for it, and nothing is added to the measured loop.  Return False where
    standard input is not such a pipe.
    """
    if not os.environ.pop(HELD, ""):
        return False
    mode = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False  # a launcher's rank, whose input is not the driver's
    signal.signal(signal.SIGIO, _driver_has_gone)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    _driver_has_gone()  # it may have gone before
    return True


def _driver_has_gone(*_: Any) -> None:
    """End this process group at once if standard input has closed."""
    if _closed():
        if os.getpid() != 1:
            os.killpg(0, signal.SIGKILL)
        os._exit(1)  # in a container the first process takes all others with it


def _closed() -> bool:
    """Return whether nobody holds the other end of standard input any more."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))
