"""A first guess of how long a trial takes, for the estimate of a suite's time."""

from __future__ import annotations

from iobench.core import registry, stages
from iobench.core.cases import Trial

#: Seconds a trial costs around its loop: interpreter, imports, cache control and proof.
OVERHEAD_S = 3.2


def guess_s(trial: Trial, compute_s: float) -> float:
    """Return a first guess of a trial's wall time in seconds."""
    case, stage = trial.case, stages.of(trial.stage)
    if not stage.reads:
        return OVERHEAD_S + compute_s
    if not stage.rate:
        return OVERHEAD_S + 1.0
    samples = trial.epochs * (case.samples or 1280)
    loop = samples / (stage.rate * max(case.workers, 1))
    if stage.trained:
        step = registry.load("trainers", case.trainer).step_s(case.batch, case.trainer_options)
        loop = max(loop, samples / case.batch / case.world_size * step)
    return OVERHEAD_S + loop
