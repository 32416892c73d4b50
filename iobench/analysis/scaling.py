"""What several ranks cost: their step of the compute rung against one rank's.

docs/method.md, "Several ranks".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from iobench import stalls, stats, world
from iobench.contrasts import estimate
from iobench.figures import Evidence, why_missing
from iobench.model import EXPLORATORY, VALID, Case
from iobench.stalls import TrainTrial


def communication(
    found: Evidence, case: Case, compute: Sequence[TrainTrial]
) -> dict[str, Any] | None:
    """Return what several ranks' steps take longer than one's, seconds a step; None for one rank.

    ``exchange_s``: what the trainers themselves count a step for exchanging gradients, of the rank
    that waits least in it.  ``efficiency``: weak scaling's, of the compute rung.
    """
    if case.world_size == 1:
        return None
    alone = found.alone(case)
    entry: dict[str, Any] = {"value": None, "ranks": case.world_size, "reason": ""}
    if not compute or not alone:
        return entry | {"reason": why_missing(found, case, "alone" if compute else "compute", "-")}
    stall = stalls.communication(compute, alone)
    several_s = math.fsum(t.wall_s / t.steps for t in compute) / len(compute)
    alone_s = math.fsum(t.wall_s / t.steps for t in alone) / len(alone)
    exchanges = [
        min(times)
        for r in found.computed(case)
        if (times := [t for rank in r.ranks if (t := world.exchange_s(rank)) is not None])
    ]
    return entry | {
        **estimate(stall.interval),
        "paired": stall.paired,
        "standing": EXPLORATORY if stall.interval.n < stats.WANTED_PAIRS else VALID,
        "step_s": several_s,
        "alone_step_s": alone_s,
        "exchange_s": math.fsum(exchanges) / len(exchanges) if exchanges else None,
        "efficiency": stalls.weak_scaling(alone_s, several_s, case.world_size)[1],
    }
