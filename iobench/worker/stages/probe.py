"""The shares of a sample's time, without workers or a queue."""

from __future__ import annotations

from iobench.core import registry
from iobench.core.records import NO_STEPS
from iobench.core.stages import Measured, Outcome, Stage
from iobench.host import io_counters
from iobench.worker.rank import RankRun


def _serial(job: RankRun) -> Outcome:
    """Read, decode and transform one sample after the other: where a sample's time goes."""
    probe = registry.load("loaders", job.task.trial.case.loader).probe
    samples = min(256, len(job.request.ids))
    before = io_counters.snapshot()
    times = probe(job.request, samples)
    return (
        Measured(NO_STEPS, [job.request.ids[:samples]]),
        io_counters.difference(before, io_counters.snapshot()),
        {"probe": {k: list(v) for k, v in times.items()}},
    )


BACKEND = Stage(
    _serial,
    "one sample after the other: where its time goes",
    caches=("warm",),
    always=True,
    one_rank=True,
    in_process=True,
)
