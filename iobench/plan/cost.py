"""A first guess of how long trials take: a suite's time, and what of it fits into a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from iobench.core import registry, stages
from iobench.core.cases import Plan, Trial
from iobench.plan.blocks import first_look, groups, members
from iobench.plan.contrasts import contrasts, fewest_of

#: Seconds a trial costs around its loop: interpreter, imports, cache control and proof.
OVERHEAD_S = 3.2


def guess_s(trial: Trial, compute_s: float, samples: int = 1280) -> float:
    """Return a first guess of a trial's wall time in seconds, on a dataset of ``samples``."""
    case, stage = trial.case, stages.of(trial.stage)
    if not stage.reads:
        return OVERHEAD_S + compute_s
    if not stage.rate:
        return OVERHEAD_S + stage.loop_s
    samples = trial.all_epochs * (case.samples or samples)
    loop = samples / (stage.rate * max(case.workers, 1))
    if stage.trained:
        step = registry.load("trainers", case.trainer).step_s(case.batch, case.trainer_options)
        loop = max(loop, samples / case.batch / case.world_size * step)
    return OVERHEAD_S + loop


def shortfall(plan: Plan) -> Iterator[str]:
    """Yield what does not fit into a plan's budget, and what would; nothing where all fits.

    The ladder and the first pairs of each contrast always run.
    """
    ladder, pairs = _ladder_s(plan, lambda trial: True), _pairs_s(plan)
    if ladder + pairs <= plan.budget_s:
        return
    smaller = {
        "ladder.repeats = 1": _ladder_s(plan, lambda trial: trial.block <= 1),
        'ladder.caches = ["warm"]': _ladder_s(plan, lambda trial: trial.cache in ("warm", "-")),
    }
    ways = [f"{key} ({_words(s + pairs)} in all)" for key, s in smaller.items() if s < ladder]
    enough = f'budget = "{math.ceil((ladder + pairs) / 60)}m"'
    yield (
        f"budget = {_words(plan.budget_s)} cannot hold the ladder (about {_words(ladder)}) and the "
        f"first pairs of each contrast (about {_words(pairs)}), which always run; what would fit: "
        f"{', or '.join([enough, *ways])}"
    )


def _ladder_s(plan: Plan, wanted: Callable[[Trial], bool]) -> float:
    return sum(
        guess_s(trial, plan.compute_s, plan.dataset.samples)
        for trial in plan.trials
        if wanted(trial)
    )


def _pairs_s(plan: Plan) -> float:
    """Return seconds of the pairs that run whatever the budget is."""
    total, by_label = 0.0, {case.label: case for case in plan.cases}
    planned = contrasts(plan.rules, {})
    for together in groups(planned).values():
        first = together[0]
        pairs = min(first_look(first), fewest_of(planned, together))
        for label in members(together):
            trial = Trial("", by_label[label], first.stage, first.cache, epochs=first.epochs)
            total += pairs * guess_s(trial, plan.compute_s, plan.dataset.samples)
    return total


def _words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{math.ceil(seconds / 60)}m"
