"""What a command begins with, before anything large is imported: its streams and its signals.

A stream that is closed would give its number to the next file that is opened, and standard error
that nobody reads any more would end a suite of hours.  A signal may come while modules are still
being imported.
"""

from __future__ import annotations

import io
import mmap
import os
import signal
import sys
from types import FrameType
from typing import TextIO

from iobench.core.clock import clock
from iobench.host.interrupts import ENDING

INTERRUPTED = 130
STDOUT = "standard output"
#: A signal that came where Python ignores exceptions comes again after so many seconds.
_ONCE_MORE_S = 0.01
#: So long after one of them another does not disturb what is being taken down, seconds.
TAKING_DOWN_S = 5.0
#: What to do after the command was ended: shared with the process that watches over it.
_GOES_ON = mmap.mmap(-1, 1 << 13)
_AGAIN = "the same command goes on where it stopped"


def begin() -> None:
    """Set streams and signals up; until :func:`interruptible` a signal ends the process."""
    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, _end)
    _open_streams()


def interruptible() -> None:
    """From now on a signal that asks to end raises KeyboardInterrupt, as Ctrl-C does.

    One that is raised where Python ignores exceptions, such as in a finalizer, is raised again.
    """
    last = -TAKING_DOWN_S

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        again, last = clock() < last + TAKING_DOWN_S, clock()
        if not again:
            raise KeyboardInterrupt

    def again(ignored: sys.UnraisableHookArgs) -> None:
        if isinstance(ignored.exc_value, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _ONCE_MORE_S)
        else:
            sys.__unraisablehook__(ignored)

    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    sys.unraisablehook = again


def goes_on_by(words: str) -> None:
    """From now on these words say how to go on, if the command is ended."""
    _GOES_ON[:] = words.encode(errors="replace")[: len(_GOES_ON)].ljust(len(_GOES_ON), b"\0")


def goes_on() -> str:
    """Return how to go on, in words for a message."""
    return _GOES_ON[:].rstrip(b"\0").decode(errors="replace") or _AGAIN


def then() -> str:
    """Return how to go on once the cause of an error is cured; "" before there is a suite."""
    return f"; then {goes_on()}" if _GOES_ON[:].rstrip(b"\0") else ""


def not_importable(error: ImportError) -> str:
    """Return what is missing, in words; an error of iobench itself is raised again."""
    if isinstance(error, ModuleNotFoundError):
        if (error.name or "iobench").startswith("iobench"):
            raise error
        return (
            f"{error.name} is not installed here: the command line needs Python 3.11 or "
            "newer and `pip install 'iobench[driver]'`; what is here is the worker side alone"
        )
    if not (found := os.environ.get("PYTHONPATH")):
        raise error
    return f"a library cannot be imported ({error}); PYTHONPATH is {found}: unset it"


def _end(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, f"iobench: interrupted; {_AGAIN}\n".encode())
    finally:
        os._exit(INTERRUPTED)


class _Unheard(io.FileIO):
    """A stream whose reader may go away, or that may have no room: what is written is then lost."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data) or 0  # type: ignore[arg-type]
        except OSError:
            return memoryview(data).nbytes  # type: ignore[arg-type]


class _Named(io.FileIO):
    """Standard output, which a failure to write names."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data) or 0  # type: ignore[arg-type]
        except OSError as error:
            raise OSError(error.errno, error.strerror, STDOUT) from None


def _open_streams() -> None:
    """Open what is closed on /dev/null; a character that the locale lacks becomes a "?"."""
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:  # each takes the lowest that is closed
        pass
    os.close(free)
    sys.stdout = _text(_Named(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Unheard(2, "w", closefd=False), sys.stderr)


def _text(raw: io.FileIO, before: TextIO | None) -> TextIO:
    """Return a stream in the encoding of the one ``before``; None: it was closed."""
    encoding, lines = before.encoding if before else None, raw.isatty() or raw.fileno() == 2
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "replace", line_buffering=lines)
