"""Whole files from cold: how long a file's open, its read and its close take, each apart.

The case's samples, in its order, are shared out among 1, 4 and 16 processes: each file is read
once.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Dict, List, Tuple

from iobench.core import clock
from iobench.core.errors import TrialFailed, plain
from iobench.core.records import NO_STEPS
from iobench.core.stages import Measured, Outcome, Stage
from iobench.host import io_counters
from iobench.worker.rank import RankRun
from iobench.worker.stages._crew import Crew, span_s

PROCESSES = (1, 4, 16)
_BUFFER = 1 << 20


def reads(paths: List[str]) -> Callable[[], Tuple[int, float, float, float]]:
    """Return what reads these files: (bytes, seconds in open, in read, in close)."""
    buffer = [memoryview(bytearray(_BUFFER))]

    def run() -> Tuple[int, float, float, float]:
        nbytes, open_s, read_s, close_s = 0, 0.0, 0.0, 0.0
        for path in paths:
            t0 = clock.clock()
            fd = os.open(path, os.O_RDONLY)
            t1, size, at = clock.clock(), os.fstat(fd).st_size, 0
            while at < size and (count := os.preadv(fd, buffer, at)):
                at += count
            t2 = clock.clock()
            os.close(fd)
            t3 = clock.clock()
            nbytes, open_s, read_s = nbytes + at, open_s + t1 - t0, read_s + t2 - t1
            close_s += t3 - t2
        return nbytes, open_s, read_s, close_s

    return run


def _apart(job: RankRun) -> Outcome:
    request = job.request
    with contextlib.closing(request.format.open(request.dataset, request.root)) as reader:
        paths = [reader.extents(int(i))[0].path for i in request.ids]
    points = []
    with Crew(max(PROCESSES)) as crew:
        before = io_counters.snapshot(crew.pids)
        for number, processes in enumerate(PROCESSES):
            points.append(_point(crew, paths[number :: len(PROCESSES)], processes))
        io = io_counters.difference(before, io_counters.snapshot(crew.pids))
    return Measured(NO_STEPS, [request.ids]), io, {"notes": {"files": points}}


def _point(crew: Crew, paths: List[str], processes: int) -> Dict[str, Any]:
    try:
        spells = crew.together(reads, [(paths[i::processes],) for i in range(processes)])
    except OSError as error:
        raise TrialFailed(plain(error)) from None
    nbytes, *parts = (sum(values) for values in zip(*(spell.done for spell in spells)))
    return {
        "processes": processes,
        "files": len(paths),
        "bytes": nbytes,
        "seconds": span_s(spells),
        **dict(zip(("open_s", "read_s", "close_s"), parts)),
    }


BACKEND = Stage(
    _apart,
    "whole files from cold: open, read and close apart, by 1 to 16 processes",
    rung=7,
    asks="",
    caches=("cold",),
    always=True,
    one_rank=True,
    on_host=True,
    of_mount=True,
    named=True,
    per_file=True,
    loop_s=3.0,
)
