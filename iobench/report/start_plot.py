"""One picture of a job's first minute: a bar a case and cache state, its parts in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iobench.analysis.scale_results import StartResult
from iobench.report import numbers, plots

#: Part of a start -> what it is called.
PARTS = {
    "before_s": "launcher and runtime",
    "python_s": "interpreter",
    "imports_s": "imports",
}


def starts(found: Sequence[StartResult]) -> str:
    """Return the picture; "" for no start."""
    if not found:
        return ""

    def draw(axes: Any) -> None:
        left = [0.0] * len(found)
        for at, (part, name) in enumerate(PARTS.items()):
            wide = [getattr(one, part) for one in found]
            axes.barh(range(len(found)), wide, left=left, color=plots.PALETTE[at], label=name)
            left = [a + b for a, b in zip(left, wide, strict=True)]
        for row, one in enumerate(found):
            if one.seconds.limited:
                limits = [max(0.0, one.seconds.low), one.seconds.high]
                axes.plot(limits, [row, row], color=plots.INK, lw=1.2)
        axes.set_yticks(range(len(found)), [plots.wrap(f"{s.case}, {s.cache}") for s in found])
        axes.set_ylim(len(found) - 0.5, -0.6)
        axes.set_xlim(0, 1.15 * max(max(left), *(one.seconds.value for one in found)))
        axes.set_xlabel("seconds until all ranks are ready; line: 95 % interval of the whole")
        plots.legend(axes, 3)

    said = "; ".join(f"{one.case} {one.cache} {numbers.value(one.seconds)} s" for one in found)
    return plots.svg(draw, 1.4 + 0.42 * len(found), f"Start-up: {said}")
