"""One picture: how many accelerators a mount and a node feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iobench.advise.predict import Feed
from iobench.report import numbers, plots

MARKERS = ("o", "s", "D", "^", "v")


def feeds(rows: Sequence[Feed]) -> str:
    """Return a row a supply (the mount, reading, loading), a mark a kind of accelerator."""
    if not rows:
        return ""
    names = list(dict.fromkeys(_name(r) for r in rows))
    kinds = list(dict.fromkeys(r.accelerator for r in rows))

    def draw(axes: Any) -> None:
        axes.axvline(1, color=plots.INK, lw=0.8)
        for row in rows:
            y, kind = names.index(_name(row)), kinds.index(row.accelerator)
            colour = plots.PALETTE[kind % len(plots.PALETTE)]
            count = row.count
            if count.limited:
                axes.plot([max(count.low, count.value / 100), count.high], [y, y], color=colour)
            axes.plot(count.value, y, MARKERS[kind % len(MARKERS)], ms=8, color=colour)
        for kind, name in enumerate(kinds):
            colour = plots.PALETTE[kind % len(plots.PALETTE)]
            axes.plot([], [], MARKERS[kind % len(MARKERS)], ms=8, color=colour, label=name)
        axes.set_yticks(range(len(names)), [plots.wrap(name) for name in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
        values = [r.count.value for r in rows]
        plots.log_ticks(axes, min([*values, 1]) / 1.5, max([*values, 1]) * 1.5)
        axes.set_xlabel("accelerators fed at MLPerf Storage's AU (log)")
        plots.legend(axes, 4)

    said = "; ".join(f"{_name(r)} {numbers.number(r.count.value)} {r.accelerator}" for r in rows)
    return plots.svg(draw, 1.2 + 0.42 * len(names), f"Accelerators fed: {said}")


def _name(row: Feed) -> str:
    return f"{row.what} {row.cache}, {row.workload}"
