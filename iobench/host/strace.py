"""Counts the system calls of a worker that runs already, from the host, with strace.

A worker of the ``calls`` stage waits until it is traced, and marks begin and end of its loop by
asking for two paths that do not exist (:data:`~iobench.core.inside.CALLS_BEGIN`,
:data:`~iobench.core.inside.CALLS_END`).  Seen from the host a container's process is a process like
any other, so every runtime is traced in one way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from iobench.core.clock import clock
from iobench.core.inside import CALLS_BEGIN, CALLS_END, HELD
from iobench.core.records import RankResult
from iobench.host.probes import fields, last_lines, read

PROC = Path("/proc")
_ATTACH_S, _END_S, _POLL_S = 20.0, 20.0, 0.01
#: ``<pid> <name>(``: a call that begins.  Resumed calls, signals and exits look otherwise.
_CALL = re.compile(r"(?:\d+ +)?([a-z_][a-z0-9_]*)\(")


@dataclasses.dataclass
class Trace:
    """What a trace gave.  ``reason``: why there are no counts; ``counts``: call -> how often."""

    reason: str = ""
    counts: dict[str, int] = dataclasses.field(default_factory=dict)

    def note(self, ranks: Iterable[RankResult]) -> dict[str, Any]:
        """Return what the record keeps of it: samples, counts, reason."""
        samples = sum(int(rank.notes["samples"]) for rank in ranks)
        return {"samples": samples, "counts": self.counts, "reason": self.reason}


@contextlib.contextmanager
def trace(processes: Sequence[int], folder: Path) -> Iterator[Trace]:
    """Trace these processes, and all that they start, while the body runs; count at its end.

    The body lets them begin and waits until they have ended.  Raises nothing of its own: what
    cannot be traced has a ``reason``.  ``folder`` gets the trace.
    """
    found = Trace()
    if not processes:
        found.reason = "the worker's process cannot be seen from here"
    elif shutil.which("strace") is None:
        found.reason = "no program strace: install it (Debian: strace)"
    if found.reason:
        yield found
        return
    argv = ["strace", "-f", "-s", "0", "-e", "signal=none", "-o", str(folder / "trace")]
    argv += [f"--attach={pid}" for pid in processes]
    with open(folder / "strace", "wb") as output:
        tracer = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        found.reason = _attached(tracer, processes, folder / "strace")
        yield found
        with contextlib.suppress(subprocess.TimeoutExpired):
            tracer.wait(_END_S)
    finally:
        if tracer.poll() is None:
            tracer.terminate()  # it lets go of what it traces
            tracer.wait()
    if not found.reason:
        with open(folder / "trace", errors="replace") as lines:
            found.counts = counts(lines)
        found.reason = "" if found.counts else "the trace holds no whole loop"


def _attached(tracer: subprocess.Popen[bytes], processes: Sequence[int], output: Path) -> str:
    """Wait until every process is traced; return why it is not, "" when it is."""
    deadline = clock() + _ATTACH_S
    while True:
        ended = tracer.poll() is not None
        text = output.read_text(errors="replace")
        if all(f"Process {pid} attached" in text for pid in processes):
            return ""
        if ended or clock() > deadline:
            last = last_lines(text).removeprefix("strace: ") or "no output"
            return f"strace may not trace the worker ({last})"
        time.sleep(_POLL_S)


def counts(lines: Iterable[str]) -> dict[str, int]:
    """Return call -> how often it was begun between the first begin and the last end marker.

    {} where a marker is missing.  Several ranks each have their own two markers.
    """
    running: Counter[str] = Counter()
    whole: dict[str, int] = {}
    begun = False
    for line in lines:
        if f'"{CALLS_BEGIN}"' in line:
            begun = True
        elif f'"{CALLS_END}"' in line:
            whole = dict(running)
        elif begun and (call := _CALL.match(line)):
            running[call[1]] += 1
    return whole


def processes(name: str, inside: Sequence[int]) -> list[int]:
    """Return the host's process ids of the workers that a start named ``name``.

    ``inside``: the ids that they have in their own namespace.  [] unless each of them is found.
    """
    found = []
    mark = f"{HELD}={name}".encode()
    for folder in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                ids = fields(read(folder / "status")).get("NSpid", folder.name).split()
                if int(ids[-1]) in inside:  # the last: in its own namespace
                    found.append(int(folder.name))
    return sorted(found) if len(found) == len(inside) else []
