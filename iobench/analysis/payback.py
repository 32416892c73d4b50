"""What putting data somewhere costs, and after how many epochs it is paid back (a contrast's arm).

docs/method.md, "Data placement".
"""

from __future__ import annotations

import math
from statistics import median

from iobench.analysis.contrast_results import Outcome, StagingResult
from iobench.analysis.evidence import Evidence
from iobench.analysis.pairs import complete_pairs, factors
from iobench.core.cases import Contrast


def staging(found: Evidence, contrast: Contrast, outcome: Outcome) -> StagingResult | None:
    """Return what the arm's placement cost, and after how many epochs it pays.

    None for another contrast than one over placement against ``bind``.  The limits are those of
    the contrast's simultaneous interval; None where no number of epochs is enough.
    """
    cases = {c.label: c for c in found.plan.cases}
    arm, base = cases.get(contrast.arm), cases.get(contrast.base)
    place = next((p for p in found.plan.placements if arm and p.root == arm.location), None)
    if not (arm and base and place) or factors(arm, base) != ["placement"]:
        return None
    if base.placement != "bind":
        return None
    seconds = [p.seconds_per_sample[1] for p in complete_pairs(found, contrast)]
    epoch_s = found.plan.dataset.samples * median(seconds) if seconds else 0.0

    def epochs(ratio: float | None) -> float | None:
        if ratio is None or not math.isfinite(ratio) or ratio >= 1 or not epoch_s:
            return None
        return place.seconds / (epoch_s * (1 - ratio))

    spread = outcome.simultaneous
    return StagingResult(
        seconds=place.seconds,
        bytes=place.bytes,
        pays_after_epochs=epochs(outcome.ratio),
        low=epochs(spread.low) if spread else None,
        high=epochs(spread.high) if spread else None,
    )
