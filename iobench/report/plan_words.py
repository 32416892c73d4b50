"""A plan in words: what its comparisons run, and what they can be expected to show."""

from __future__ import annotations

import math
from collections.abc import Sequence

from iobench.core.cases import Contrast
from iobench.plan.blocks import first_look, groups, members
from iobench.plan.outlook import Outlook
from iobench.report.numbers import percent


def comparisons(contrasts: Sequence[Contrast], *, counted: bool = True) -> str:
    """Return how many pairs of which length the comparisons run, alike ones together.

    ``load warm: 4 groups of 4 arms, 12 pairs (up to 20), turns of 0.1 s in loops of 3 s (9 to 31
    epochs)``.  ``counted``: whether the epochs of a loop are known already.
    """
    alike: dict[tuple[str, str], list[list[Contrast]]] = {}
    for together in groups(contrasts).values():
        first = together[0]
        arms = len(members(together))
        most = f" (up to {first.looks[-1]})" if len(first.looks) > 1 else ""
        what = f"of {arms} arms, {first_look(first)} pairs{most}, {_loop(first)}"
        rung = f"{first.stage} {first.cache.strip('-')}".strip()
        alike.setdefault((rung, what), []).append(together)
    lines = []
    for (rung, what), found in alike.items():
        plural = f"{len(found)} group{'s' * (len(found) > 1)}"
        epochs = _epochs([together[0].epochs for together in found]) if counted else ""
        lines.append(f"{rung}: {plural} {what}{epochs}")
    return "; ".join(lines)


def _epochs(found: Sequence[int]) -> str:
    least, most = min(found), max(found)
    range_ = str(least) if least == most else f"{least} to {most}"
    return f" ({range_} epoch{'s' * (most > 1)})"


def _loop(contrast: Contrast) -> str:
    if not contrast.slice_s:
        return "one after the other"
    turns = f"turns of {contrast.slice_s:g} s"
    return f"{turns} in loops of {contrast.loop_s:g} s" if contrast.cache == "warm" else turns


def outlook(found: Outlook, slice_sd: float) -> str:
    """Return what the start's probe says of the suite's verdicts."""
    hour = "quiet" if found.quiet else "noisy"
    shown = "no change" if math.isinf(found.can_show) else percent(found.can_show)
    return (
        f"at the start this machine was {hour}: the speed of its cores changed by "
        f"{percent(slice_sd)} from slice to slice, so that two equal arms in turns differ by about "
        f"{percent(found.block_sd)} a pair; {found.pairs} pairs can show {shown}, and "
        f"{percent(found.margin)} takes {found.needed} pairs, about {found.needed_s / 60:.0f} min"
    )
