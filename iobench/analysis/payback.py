"""What putting data somewhere costs, and after how many epochs it is paid back.

docs/method.md, "Data placement".
"""

from __future__ import annotations

import math
from statistics import fmean, median

from iobench.analysis.contrast_results import NodesPayback, Outcome, StagingResult
from iobench.analysis.evidence import Evidence
from iobench.analysis.pairs import complete_pairs, factors, proven
from iobench.analysis.storage import storage_of
from iobench.core import registry
from iobench.core.cases import Case, Contrast, Placement
from iobench.equations.staging import Staging

#: Numbers of nodes for which the break-even is predicted.
NODES = (2, 8, 32)
#: Stages whose rates say how long an epoch is, the job's own first.
_STAGES = ("train", "load", "read")


def staging(found: Evidence, contrast: Contrast, outcome: Outcome) -> StagingResult | None:
    """Return what the arm's placement cost, and after how many epochs it pays.

    None for another contrast than one over placement against ``bind``.  The limits are those of
    the contrast's simultaneous interval; None where no number of epochs is enough.
    """
    cases = {c.label: c for c in found.plan.cases}
    arm, base = cases.get(contrast.arm), cases.get(contrast.base)
    place = _place(found, arm) if arm else None
    if not (arm and base and place) or not _bound(arm, base):
        return None
    seconds = [p.seconds_per_sample[1] for p in proven(complete_pairs(found, contrast))]
    epoch_s = found.plan.dataset.samples * median(seconds) if seconds else 0.0

    def one_node(ratio: float | None) -> Staging:
        finite = math.nan if ratio is None or not math.isfinite(ratio) else ratio
        return Staging(place.seconds, place.bytes, epoch_s, epoch_s * finite)

    spread = outcome.simultaneous
    mount = storage_of(found, base)
    known = mount and contrast.cache == "cold" and outcome.ratio and epoch_s
    bandwidth = mount.bandwidth if mount and known else None
    measured = one_node(outcome.ratio)
    return StagingResult(
        seconds=place.seconds,
        bytes=place.bytes,
        pays_after_epochs=measured.epochs,
        low=one_node(spread.low).epochs if spread else None,
        high=one_node(spread.high).epochs if spread else None,
        shared_bytes_per_s=bandwidth,
        at_nodes=[NodesPayback(n, *measured.at(n, bandwidth)) for n in NODES] if bandwidth else [],
    )


def in_memory(found: Evidence, case: Case) -> list[str]:
    """Return when a copy that is never cold pays, by the ladder: against the original, cold.

    No contrast compares them: its arms have one cache state.
    """
    place = _place(found, case)
    base = next((c for c in found.plan.cases if _bound(case, c)), None)
    if not place or base is None or not _never_cold(case):
        return []
    for stage in _STAGES:
        cold, warm = found.windows(base, stage, "cold"), found.windows(case, stage, "warm")
        if cold and warm:
            remote, local = (
                found.plan.dataset.samples * fmean(w.seconds_per_sample for w in windows)
                for windows in (cold, warm)
            )
            at = Staging(place.seconds, place.bytes, remote, local).epochs
            pays = f"pays after {at:,.3g} epochs" if at else "never pays"
            return [
                f"placement {case.placement}: {place.seconds:,.3g} s to make "
                f"({place.bytes / 1e6:,.0f} MB); against placement bind, cold, at {stage} it "
                f"{pays} (EXPLORATORY: the ladder's rates, not paired)"
            ]
    return []


def _never_cold(case: Case) -> bool:
    placement = registry.known("placements", case.placement)
    return bool(placement and placement.in_memory)


def _place(found: Evidence, case: Case) -> Placement | None:
    return next((p for p in found.plan.placements if p.root == case.location), None)


def _bound(arm: Case, base: Case) -> bool:
    """Return whether a case is another but for its placement, which is ``bind``."""
    return base.placement == "bind" and factors(arm, base) == ["placement"]
