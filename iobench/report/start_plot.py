"""One picture of a job's first minute: a row a case, a bar a cache state, its parts in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iobench.analysis.scale_results import StartResult
from iobench.report import numbers, plots, start_words

#: Part of a start -> what it is called.
PARTS = {
    "before_s": "launcher and runtime",
    "python_s": "interpreter",
    "imports_s": "imports",
}
#: Cache state -> how far from the middle of its row, and how opaque.
STATES = {"cold": (-0.2, 1.0), "warm": (0.2, 0.55)}


def starts(found: Sequence[StartResult]) -> str:
    """Return the picture; "" for no start."""
    if not found:
        return ""
    names = start_words.names(found)
    rows = list(dict.fromkeys(names.values()))

    def draw(axes: Any) -> None:
        for one in found:
            _bar(axes, rows.index(names[one.case]), one)
        for at, name in enumerate(PARTS.values()):
            axes.barh([0], [0], color=plots.PALETTE[at], label=name)
        axes.set_yticks(range(len(rows)), [plots.wrap(name) for name in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        ends = (max(one.seconds.value, _high(one)) for one in found)
        axes.set_xlim(0, 1.15 * max(ends))
        axes.set_xlabel("seconds until all ranks are ready (pale: warm)")
        plots.legend(axes, 3)

    said = "; ".join(
        f"{names[one.case]} {one.cache} {numbers.value(one.seconds)} s" for one in found
    )
    return plots.svg(draw, 1.4 + 0.5 * len(rows), f"Start-up: {said}")


def _bar(axes: Any, row: int, one: StartResult) -> None:
    shift, alpha = STATES[one.cache]
    left = 0.0
    for at, part in enumerate(PARTS):
        wide = getattr(one, part)
        colour = plots.PALETTE[at]
        axes.barh([row + shift], [wide], 0.36, left=[left], color=colour, alpha=alpha)
        left += wide
    if one.seconds.limited:
        limits = [max(0.0, one.seconds.low), _high(one)]
        axes.plot(limits, [row + shift] * 2, color=plots.INK, lw=1.2)


def _high(one: StartResult) -> float:
    """Return the upper limit, at most three times the value: two repeats seldom have a nearer."""
    return min(one.seconds.high, 3 * one.seconds.value) if one.seconds.limited else 0.0
