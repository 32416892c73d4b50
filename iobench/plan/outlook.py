"""The cores' noise at a suite's start -> what its verdicts can show, in which time.  Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from iobench.core.cases import Contrast, Plan
from iobench.equations import sequential, signed_rank, stats
from iobench.plan.blocks import first_look, groups, members
from iobench.plan.contrasts import contrasts, family_of
from iobench.plan.cost import OVERHEAD_S

#: Up to this share of the cores in the sd of a block of two equal arms an hour is called quiet.
QUIET_SD = 0.01
#: sd of the log ratio of two equal loaders that take turns for a second each, beyond that of the
#: cores: their processes wait for each other.  It falls with the root of the time.  Two workers on
#: two cores, four pipelines (docs/validation.md); elsewhere it is a guess.
LOADER_SD = 0.03


class Outlook(NamedTuple):
    """What to expect of the contrasts whose arms take turns.

    ``block_sd``: of the log ratio of two equal arms; ``cores_sd``: what the uneven speed of the
    cores alone would make it.  ``can_show``: relative change that ``pairs``
    pairs resolve with 90 % power (infinite: none).  ``needed``: pairs for the ``margin``, which
    take about ``needed_s`` seconds for all of them.
    """

    block_sd: float
    cores_sd: float
    pairs: int
    can_show: float
    margin: float
    needed: int
    needed_s: float

    @property
    def quiet(self) -> bool:
        """Tell whether the hour is quiet."""
        return self.cores_sd <= QUIET_SD


def outlook(plan: Plan) -> Outlook | None:
    """Return the expectation from the start's probe; None where no arms take turns.

    Pairs are judged as the verdicts will be: with the level of the first look, of all contrasts of
    the family.
    """
    taking = in_turns(plan)
    if not taking or not plan.slice_sd:
        return None
    shortest = min(taking, key=lambda c: c.loop_s / c.slice_s)
    of_cores = cores_sd(plan.slice_sd, shortest)
    sd = math.hypot(of_cores, LOADER_SD / math.sqrt(shortest.loop_s))
    alpha = min(_first_level(_contrasts(plan), c) for c in taking)
    pairs, margin = min(map(first_look, taking)), min(c.margin for c in taking)
    needed = signed_rank.pairs_for(margin, sd, alpha=alpha)
    can_show = signed_rank.smallest_effect(sd, pairs, alpha=alpha)
    block_s = sum(
        (OVERHEAD_S + together[0].loop_s) * len(members(together))
        for together in groups(taking).values()
    )
    return Outlook(sd, of_cores, pairs, can_show, margin, needed, needed * block_s)


def _first_level(every: Sequence[Contrast], contrast: Contrast) -> float:
    """Return the nominal level of the two-sided test at a contrast's first look."""
    looks = contrast.looks or (contrast.pairs,)
    alpha = stats.ALPHA / family_of(every, contrast)
    return sequential.levels(looks, alpha, contrast.pairs)[0].differ


def cores_sd(slice_sd: float, contrast: Contrast) -> float:
    """Return what the cores make two equal arms differ by (sd of the log ratio of a pair).

    Slices differ independently, so a loop of n of them varies by 1 / sqrt(n) of what one does.
    """
    return slice_sd / math.sqrt(max(contrast.loop_s / contrast.slice_s, 1.0))


def in_turns(plan: Plan) -> list[Contrast]:
    """Return the warm contrasts with a verdict whose arms take turns; primary ones if any are."""
    warm = [c for c in _contrasts(plan) if c.slice_s and c.cache == "warm"]
    taking = [c for c in warm if c.pairs >= signed_rank.FLOOR_PAIRS]
    return [c for c in taking if c.primary] or taking


def _contrasts(plan: Plan) -> Sequence[Contrast]:
    """Return the plan's contrasts, or those that its rules give before the ladder has run."""
    return plan.contrasts or contrasts(plan.rules, {})
