"""What a command begins with, before anything large is imported: its streams and its signals.

A stream that is closed would give its number to the next file that is opened, and standard error
that nobody reads any more would end a suite of hours.  A signal may come while modules are still
being imported.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType

from iobench.core.clock import clock

INTERRUPTED = 130
#: What asks a command to end: Ctrl-C, a batch system, a terminal that went away.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: So long after one of them another does not disturb what is being taken down, seconds.
TAKING_DOWN_S = 5.0
_LINE = b"iobench: interrupted; the same command goes on where it stopped\n"


def begin() -> None:
    """Set streams and signals up; until :func:`interruptible` a signal ends the process."""
    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, _end)
    _open_streams()


def interruptible() -> None:
    """From now on a signal that asks to end raises KeyboardInterrupt, as Ctrl-C does."""
    last = -TAKING_DOWN_S

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        again, last = clock() < last + TAKING_DOWN_S, clock()
        if not again:
            raise KeyboardInterrupt

    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)


def _end(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, _LINE)
    finally:
        os._exit(INTERRUPTED)


class _Unheard(io.FileIO):
    """A stream whose reader may go away, or that may have no room: what is written is then lost."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data) or 0  # type: ignore[arg-type]
        except OSError:
            return memoryview(data).nbytes  # type: ignore[arg-type]


def _open_streams() -> None:
    """Open what is closed on /dev/null; a character that the locale lacks becomes a "?"."""
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:  # each takes the lowest that is closed
        pass
    os.close(free)
    encoding = sys.stderr.encoding if sys.stderr else None
    sys.stdout = sys.stdout or _text(io.FileIO(1, "w", closefd=False), None)
    sys.stderr = _text(_Unheard(2, "w", closefd=False), encoding)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _text(raw: io.FileIO, encoding: str | None) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "replace", line_buffering=True)
