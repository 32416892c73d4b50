"""Starts, and ends: what a job's first minute costs before it reads a sample.

The driver has brought the files of the software that the processes start from into the trial's
cache state; it measures from the start of the launcher or runtime until every rank has imported its
libraries.
"""

from iobench.core.records import NO_STEPS, IoCounters
from iobench.core.stages import Measured, Outcome, Stage
from iobench.worker.rank import RankRun


def _start(job: RankRun) -> Outcome:
    return Measured(NO_STEPS, []), IoCounters(), {}


BACKEND = Stage(
    _start,
    "starts all ranks, their software cold or warm, and ends: a job's first minute",
    rung=70,
    caches=("cold", "warm"),
    trained=True,
    starts=True,
    named=True,
    loop_s=8.0,
)
