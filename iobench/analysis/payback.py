"""What putting data somewhere costs, and after how many epochs it is paid back (a contrast's arm).

``n* = t_stage / (t_epoch of the base - t_epoch of the arm)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from iobench.contrasts import complete_pairs, factors
from iobench.figures import Evidence
from iobench.model import Contrast


def staging(found: Evidence, contrast: Contrast, entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return seconds, bytes and ``pays_after_epochs`` of the arm's placement.

    None for another contrast than one over placement against ``bind``.  ``pays_after_epochs`` is
    None where the arm is no faster, and so are its limits (those of the contrast's simultaneous
    interval) where no number of epochs is enough; an epoch is the one of the contrast's stage over
    all samples, as all are copied, however few of them a trial takes.
    """
    cases = {c.label: c for c in found.plan.cases}
    arm, base = cases.get(contrast.arm), cases.get(contrast.base)
    place = next((p for p in found.plan.placements if arm and p.root == arm.location), None)
    if not (arm and base and place) or factors(arm, base) != ["placement"]:
        return None
    if base.placement != "bind":
        return None
    pairs = complete_pairs(found, contrast)
    epoch_s = (
        found.plan.dataset.samples * median(p.seconds_per_sample[1] for p in pairs)
        if pairs
        else 0.0
    )

    def epochs(ratio: float | None) -> float | None:
        if ratio is None or ratio >= 1 or not epoch_s:
            return None
        return place.seconds / (epoch_s * (1 - ratio))

    spread = entry["simultaneous"] or {}
    return {
        "seconds": place.seconds,
        "bytes": place.bytes,
        "pays_after_epochs": epochs(entry["ratio"]),
        "low": epochs(spread.get("low")),
        "high": epochs(spread.get("high")),
    }
