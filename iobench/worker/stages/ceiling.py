"""What the mount can give: fio reads the same extents on the host."""

from __future__ import annotations

from iobench.core.protocols import Measured
from iobench.core.records import NO_STEPS, IoCounters
from iobench.core.stages import Outcome, Stage
from iobench.worker.rank import RankRun


def _located(job: RankRun) -> Outcome:
    """Return the samples that fio reads; their extents were written before ``ready``."""
    return Measured(NO_STEPS, [job.request.ids]), IoCounters(), {}


BACKEND = Stage(
    _located,
    "fio with this format's access pattern: what the mount can give",
    rung=10,
    asks="",
    caches=("cold",),
    always=True,
    one_rank=True,
    on_host=True,
)
