"""The shares of a sample's time, without workers or a queue."""

from __future__ import annotations

from typing import Mapping, Sequence

from iobench.core import registry
from iobench.core.clock import clock
from iobench.core.errors import TrialFailed
from iobench.core.records import NO_STEPS
from iobench.core.stages import PROBED, PROBED_IN_TURNS, Measured, Outcome, Stage
from iobench.host import io_counters
from iobench.worker.rank import RankRun


def _serial(job: RankRun) -> Outcome:
    """Read, decode and transform one sample after the other: where a sample's time goes."""
    trial = job.task.trial
    probe = registry.load("loaders", trial.case.loader).probe
    most = PROBED_IN_TURNS if trial.slice_s else PROBED
    samples = min(most, len(job.request.ids))
    job.meet()
    before, began_s = io_counters.snapshot(), clock()
    times = {name: list(values) for name, values in probe(job.request, samples).items()}
    after = io_counters.snapshot()
    job.rest()
    for name, values in times.items():
        if name.endswith("_at"):
            times[name] = [at - began_s for at in values]
    if trial.slice_s:
        _check(trial.case.loader, times)
    return (
        Measured(NO_STEPS, [job.request.ids[:samples]], began_s),
        io_counters.difference(before, after),
        {"probe": times},
    )


def _check(loader: str, times: Mapping[str, Sequence[float]]) -> None:
    """Raise TrialFailed where it is not known when a part of a sample began.

    It may have been stopped meanwhile.
    """
    for name in (name for name in times if name.endswith("_s")):
        began = f"{name[: -len('_s')]}_at"
        if len(times.get(began, ())) != len(times[name]):
            raise TrialFailed(
                f"the probe of loader {loader!r} returns {name} without {began}, the clock as each "
                "began, and so cannot take turns: add it, or set slice_s = 0 in the contrast"
            )


BACKEND = Stage(
    _serial,
    "one sample after the other: where its time goes",
    caches=("warm",),
    always=True,
    one_rank=True,
    in_process=True,
)
