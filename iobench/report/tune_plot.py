"""One picture: every setting that a search tried, beside what training can reach."""

from __future__ import annotations

from typing import Any

from iobench.report import numbers, plots
from iobench.tune.answer import TuneResult


def tried(found: TuneResult) -> str:
    """Return the rate of every setting in the order tried; "" where none was.

    Filled: whole trials.  Open: settings that were dominated and ended early.
    """
    rows = [t for t in found.tried if t.samples_per_s and t.label != found.current]
    if not rows or found.limits is None:
        return ""
    pipelines = list(dict.fromkeys(t.label.split(" ")[0] for t in rows))
    limits = found.limits

    def draw(axes: Any) -> None:
        axes.axhline(limits.compute, color=plots.INK, lw=0.8, label="compute alone")
        axes.axhline(limits.train, color=plots.INK, lw=0.8, ls=":", label="current")
        for x, row in enumerate(rows, 1):
            colour = plots.PALETTE[pipelines.index(row.label.split(" ")[0]) % len(plots.PALETTE)]
            axes.plot(x, row.samples_per_s, "o", ms=7, color=colour,
                      mfc="none" if row.early else colour)  # fmt: skip
            if row.label == found.winner:
                axes.plot(x, row.samples_per_s, "o", ms=13, mfc="none", color="#D55E00")
        for i, name in enumerate(pipelines):
            axes.plot([], [], "o", color=plots.PALETTE[i % len(plots.PALETTE)], label=name)
        axes.set_ylim(0, 1.15 * max([limits.compute, *(t.samples_per_s or 0.0 for t in rows)]))
        axes.set_xlabel("setting, in the order tried (open: ended early)")
        axes.set_ylabel(f"samples/s, train {found.cache}")
        plots.legend(axes, 3)

    said = "; ".join(f"{t.label} {numbers.number(t.samples_per_s)}" for t in rows)
    return plots.svg(draw, 3.2, f"Settings tried, samples/s: {said}")
