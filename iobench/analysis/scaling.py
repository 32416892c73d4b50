"""What several ranks cost: their step of the compute rung against one rank's.

docs/method.md, "Several ranks"."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from iobench.analysis.case_results import CommunicationResult, NoCommunication
from iobench.analysis.evidence import Evidence, standing, why_missing
from iobench.analysis.ranks import exchange_s
from iobench.core.cases import Case
from iobench.equations import stalls
from iobench.equations.stalls import Window


def communication(
    found: Evidence, case: Case, compute: Sequence[Window]
) -> CommunicationResult | NoCommunication | None:
    """Return by how much a step of several ranks is longer than one rank's; None for one rank."""
    if case.world_size == 1:
        return None
    alone = found.alone(case)
    if not compute or not alone:
        reason = why_missing(found, case, "alone" if compute else "compute", "-")
        return NoCommunication(case.world_size, reason=reason)
    stall = stalls.communication(compute, alone)
    several_s, alone_s = (fmean(t.wall_s / t.steps for t in side) for side in (compute, alone))
    exchanges = [
        min(times)
        for r in found.shared(case, "compute")
        if (times := [t for rank in r.ranks if (t := exchange_s(rank)) is not None])
    ]
    efficiency = stalls.weak_scaling(alone_s, several_s, case.world_size)[1]
    return CommunicationResult(
        **vars(stall.interval),
        ranks=case.world_size,
        reason="",
        paired=stall.paired,
        standing=standing(stall.interval.n),
        step_s=several_s,
        alone_step_s=alone_s,
        exchange_s=fmean(exchanges) if exchanges else None,
        efficiency=efficiency if exchanges and efficiency <= 1 else None,
    )
