"""Why the processes of a trial ended without a result, in one line."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import MappingProxyType

from iobench.backends.caffe import log as caffe_log
from iobench.core import registry
from iobench.run import ranks

_NOWHERE: Mapping[int, str] = MappingProxyType({})
#: What most likely ended a process by these signals.
_LIKELY = {
    signal.SIGBUS: "a mapped file, such as an LMDB, was cut short? /dev/shm is full?",
    signal.SIGABRT: "a library's own check failed",
}


def why(
    code: int, stderr: str, launcher: str, world_size: int, *, places: Mapping[int, str] = _NOWHERE,
    failing: str = "", starved: int | None = None,
) -> str:  # fmt: skip
    """Return in one line why processes ended with this status, as they and their launcher say.

    ``places``: rank -> node, of several.  ``failing``: the rank that went first, as seen from here.
    ``starved``: how many processes the kernel ended for want of memory meanwhile; None: not known.
    """
    who = failing or "worker"
    failed = registry.load("launchers", launcher).failure(stderr)
    if failed is not None:
        code, stderr = failed.code, failed.output
        who = ranks.name(failed.rank, world_size, places.get(failed.rank, ""))
    if reason := caffe_log.fatal(stderr):
        return reason if world_size == 1 else f"{who}: {reason}"
    last = last_line(stderr)
    if code - 128 in set(signal.Signals):  # a container's end, as its runtime reports it
        code = 128 - code
    if code < 0 and -code in set(signal.Signals):
        number = signal.Signals(-code)
        likely = _memory(starved) if number == signal.SIGKILL else _LIKELY.get(number, "")
        return f"{who} killed by {number.name}{f' ({likely})' * bool(likely)}{last}"
    return f"{who} ended with status {code} and no result{last}"


def _memory(starved: int | None) -> str:
    if starved is None:
        return "out of memory?"
    if starved:
        return f"out of memory? the kernel ended {starved} of this machine's processes meanwhile"
    return "by another program: the kernel ended none for want of memory"


def late(limit_s: float, missing: str, cause: str) -> str:
    """Return in one line that time was up: which ranks had no result (``missing``), and the cause
    with its remedy, "" where none was seen."""
    who = f" ({missing}: no result)" if missing else ""
    return (
        f"ran longer than limit_s = {limit_s:g}{who}; "
        f"{cause or 'raise it in the spec, or take fewer samples'}"
    )


def read_again(nbytes: int, memory_bytes: int) -> str:
    """Return that a case's memory did not hold the files in use, with the remedy; "" where what was
    read again (``nbytes``) would not fill it."""
    words = (
        f"memory = {memory_bytes >> 20} MiB does not hold the files in use, its libraries among "
        f"them: {nbytes >> 20} MiB had to be read again; raise memory"
    )
    return words if 0 < memory_bytes <= nbytes else ""


def last_line(text: str) -> str:
    """Return the last line of a text as a suffix, ": ..."; "" where it is empty."""
    lines = [line for line in text.splitlines() if line.strip("-=* \t")]
    return f": {lines[-1]}" if lines else ""
