"""What a block of a contrast took, and what kept its pairs from a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import median, stdev

from iobench.analysis import ranks
from iobench.analysis.contrast_results import ContrastResult
from iobench.analysis.disturbance import cores_taken
from iobench.analysis.evidence import Evidence
from iobench.analysis.pairs import complete_pairs, is_of, proven
from iobench.analysis.time_spent import span
from iobench.core.cases import Contrast
from iobench.core.records import Record
from iobench.equations import stats
from iobench.plan.outlook import cores_sd


def block_s(evidence: Evidence, contrast: Contrast) -> float | None:
    """Return the median seconds of a block, from the first start of an arm to the last end."""
    blocks: dict[int, list[tuple[float, float]]] = {}
    for record in _of(evidence, contrast):
        if known := span(record):
            blocks.setdefault(record.trial.block, []).append(known)
    lasted = [max(end for _, end in arms) - min(arms)[0] for arms in blocks.values()]
    return median(lasted) if lasted else None


def _of(evidence: Evidence, contrast: Contrast) -> list[Record]:
    """Return the records of a contrast's blocks."""
    return [r for r in evidence.last.values() if is_of(r.trial, contrast)]


def causes(evidence: Evidence, contrast: Contrast, result: ContrastResult) -> Sequence[str]:
    """Return what made the interval of an INCONCLUSIVE contrast wide, as far as it is known."""
    if result.outcome.verdict != stats.INCONCLUSIVE:
        return ()
    found, last = [], result.look.planned[-1]
    noise = _noise(evidence.plan.slice_sd, contrast, result.outcome.log_sd)
    if cause := _kernel(evidence, contrast) or noise:
        found.append(cause)
    if count := len({r.trial.block for r in _of(evidence, contrast) if cores_taken(r)}):
        found.append(f"other programs or the hypervisor took cores beside {count} blocks")
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


def _kernel(evidence: Evidence, contrast: Contrast) -> str:
    """Return by how much time in the kernel differs between the arms of warm pairs, if that is at
    least half of the variance of their ratio; "" where it is not, or was not measured.

    Of cold arms the kernel also reads.
    """
    pairs = proven(complete_pairs(evidence, contrast)) if contrast.cache == "warm" else ()
    used = [[ranks.together(r.ranks) for r in (p.arm, p.base)] for p in pairs]
    spent_s = [sum(io.cpu_s for io in both) / 2 for both in used]
    if len(pairs) < 2 or not all(spent_s):
        return ""
    kernel = [
        (arm.cpu_sys_s - base.cpu_sys_s) / s for (arm, base), s in zip(used, spent_s, strict=True)
    ]
    ratios = [log(arm / base) for arm, base in (p.seconds_per_sample for p in pairs)]
    rest = [ratio - share for ratio, share in zip(ratios, kernel, strict=True)]
    if 2 * stdev(rest) ** 2 > stdev(ratios) ** 2:
        return ""
    return (
        f"mostly of time in the kernel, which differs by {stdev(kernel):.1%} between the arms of a "
        "pair: memory that an allocator gives back and takes anew, as a rule (docs/loaders.md)"
    )
