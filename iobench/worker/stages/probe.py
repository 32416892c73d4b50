"""The shares of a sample's time, without workers or a queue."""

from __future__ import annotations

from iobench.core import registry
from iobench.core.clock import clock
from iobench.core.records import NO_STEPS
from iobench.core.stages import Measured, Outcome, Stage
from iobench.host import io_counters
from iobench.worker.rank import RankRun

#: Samples of a probe; and of one that is compared with another arm's, on data in memory.
SAMPLES, COMPARED = 256, 1024


def _serial(job: RankRun) -> Outcome:
    """Read, decode and transform one sample after the other: where a sample's time goes."""
    trial = job.task.trial
    probe = registry.load("loaders", trial.case.loader).probe
    most = COMPARED if trial.contrast and trial.cache == "warm" else SAMPLES
    samples = min(most, len(job.request.ids))
    job.meet()
    before, began_s = io_counters.snapshot(), clock()
    times = {name: list(values) for name, values in probe(job.request, samples).items()}
    after = io_counters.snapshot()
    job.rest()
    for name, values in times.items():
        if name.endswith("_at"):
            times[name] = [at - began_s for at in values]
    return (
        Measured(NO_STEPS, [job.request.ids[:samples]], began_s),
        io_counters.difference(before, after),
        {"probe": times},
    )


BACKEND = Stage(
    _serial,
    "one sample after the other: where its time goes",
    caches=("warm",),
    always=True,
    one_rank=True,
    in_process=True,
)
