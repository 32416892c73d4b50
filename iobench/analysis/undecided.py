"""What a block of a contrast took, and what kept its pairs from a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from iobench.analysis.contrast_results import ContrastResult
from iobench.analysis.evidence import Evidence
from iobench.analysis.time_spent import span
from iobench.core.cases import Contrast
from iobench.equations import stats
from iobench.plan.blocks import group_of
from iobench.plan.outlook import cores_sd


def block_s(evidence: Evidence, contrast: Contrast) -> float | None:
    """Return the median seconds of a block, from the first start of an arm to the last end."""
    blocks: dict[int, list[tuple[float, float]]] = {}
    for record in evidence.last.values():
        trial, known = record.trial, span(record)
        if known and trial.contrast == group_of(contrast) and trial.stage == contrast.stage:
            blocks.setdefault(trial.block, []).append(known)
    lasted = [max(end for _, end in arms) - min(arms)[0] for arms in blocks.values()]
    return median(lasted) if lasted else None


def causes(evidence: Evidence, contrast: Contrast, result: ContrastResult) -> Sequence[str]:
    """Return what made the interval of an INCONCLUSIVE contrast wide, as far as it is known."""
    if result.outcome.verdict != stats.INCONCLUSIVE:
        return ()
    found, last = [], result.look.planned[-1]
    if noise := _noise(evidence.plan.slice_sd, contrast, result.outcome.log_sd):
        found.append(noise)
    if count := len(result.repeated_blocks):
        found.append(f"other programs ran beside {count} of {result.pairs_planned} blocks")
    if lost := result.pairs_planned - result.pairs:
        found.append(f"{lost} of {result.pairs_planned} blocks gave no pair")
    if contrast.looks and last < contrast.pairs:
        found.append(f"the budget held {last} of {contrast.pairs} pairs")
    return found


def _noise(slice_sd: float, contrast: Contrast, seen: float | None) -> str:
    """Return whether the cores or the loaders make pairs vary; "" where nothing was measured."""
    if not slice_sd or not contrast.slice_s or contrast.cache != "warm" or seen is None:
        return ""
    cores = cores_sd(slice_sd, contrast)
    if 2 * cores**2 < seen**2:
        return f"mostly of the arms themselves: the cores' speed accounts for {cores:.1%}"
    return f"mostly of the cores, whose speed changed by {slice_sd:.1%} from slice to slice"
