"""Locate the samples that fio reads on the host: what stages share that measure there."""

from __future__ import annotations

from iobench.core.records import NO_STEPS, IoCounters
from iobench.core.stages import Measured, Outcome
from iobench.worker.rank import RankRun


def located(job: RankRun) -> Outcome:
    """Return the samples that fio reads; their extents were written before ``ready``."""
    return Measured(NO_STEPS, [job.request.ids]), IoCounters(), {}
