"""How many epochs the loops of a search have: so many that their rates are of the settings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from iobench.core.cases import Case, Plan
from iobench.tune.bounds import Bounds
from iobench.tune.settings import TuneSettings
from iobench.tune.space import ahead

#: Effective samples of every loop (Bounds.alike): with fewer, whether two slow ones meet in one
#: worker makes the rate, and the order is the same one in every trial.
EFFECTIVE = 32
#: Steps of a loop that decides, over the batches that its loader makes ahead: those that are made
#: when a short loop begins to count, and not made anew at its end, flatter a deep queue.
WHOLE = 3
#: Epochs of a loop, at most.
MOST_EPOCHS = 4


def epochs_of(
    plan: Plan, cases: Sequence[Case], asked: TuneSettings, found: Bounds, *, decides: bool = False
) -> int:  # fmt: skip
    """Return how many epochs a loop of each of these cases has: so many that slow samples are not
    few, and, where it ``decides``, that the deepest queue is a small part of its steps.

    A second epoch is never cold; a script's loop is of seconds.
    """
    if asked.cache == "cold" or asked.script:
        return 1
    samples = [max(1, (case.samples or plan.dataset.samples) // case.world_size) for case in cases]
    needed = [EFFECTIVE / (found.alike * n) for n in samples]
    if decides:
        steps = [max(1, n // case.batch) for n, case in zip(samples, cases, strict=True)]
        needed.append(WHOLE * max(map(ahead, cases)) / min(steps))
    return min(MOST_EPOCHS, max(1, math.ceil(max(needed))))
