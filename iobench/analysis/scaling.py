"""What several ranks cost: their step of the compute rung against one rank's.

docs/method.md, "Several ranks"."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from iobench.analysis.case_results import CommunicationResult, NoCommunication
from iobench.analysis.evidence import Evidence, standing, why_missing
from iobench.analysis.ranks import exchange_s, steady_mean
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
    several_s, alone_s = (fmean(t.step_s for t in side) for side in (compute, alone))
    records = found.shared(case, "compute")
    exchanges = [
        min(times)
        for r in records
        if (times := [t for rank in r.ranks if (t := exchange_s(rank)) is not None])
    ]
    apart = [
        (min(waited), max(peers))
        for r in records
        if all(rank.steps.peers_s for rank in r.ranks)
        and (waited := [steady_mean(rank.steps, rank.steps.exchange_s) for rank in r.ranks])
        and (peers := [steady_mean(rank.steps, rank.steps.peers_s) for rank in r.ranks])
    ]
    waited_s, peers_s = map(fmean, zip(*apart, strict=True)) if apart else (None, None)
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
        waited_s=waited_s,
        peers_s=peers_s,
    )
