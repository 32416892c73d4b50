"""One picture: the rate of every pipeline on this mount and trainer, and what limits it."""

from __future__ import annotations

from typing import Any

from iobench.analysis.rates import PipelineRate, RateTable
from iobench.report import numbers, plots

#: Cache state -> how far from the middle of its row, marker, colour.
STATES = {"cold": (-0.16, "o", plots.COLD), "warm": (0.16, "D", plots.WARM)}


def rates(table: RateTable) -> str:
    """Return a row a case, a mark a cache state, its limit beside it; "" for fewer than two."""
    rows = [row for row in table.rows if row.samples_per_s and row.cache in STATES]
    names = list(dict.fromkeys(row.case for row in rows))
    if len(names) < 2:
        return ""

    def draw(axes: Any) -> None:
        for row in rows:
            _mark(axes, names.index(row.case), row)
        for cache in dict.fromkeys(row.cache for row in rows):
            axes.plot([], [], STATES[cache][1], color=STATES[cache][2], ms=7, label=cache)
        axes.set_yticks(range(len(names)), [plots.wrap(name) for name in names])
        axes.set_ylim(len(names) - 0.5, -0.6)
        values = [row.samples_per_s.value for row in rows if row.samples_per_s]
        plots.log_ticks(axes, min(values) / 1.6, max(values) * 4)
        axes.set_xlabel(f"samples/s of {_stages(rows)} (log), 95 % interval")
        plots.legend(axes, 4)

    said = "; ".join(f"{row.case} {row.cache} {words(row)}" for row in rows)
    return plots.svg(draw, 1.2 + 0.55 * len(names), f"Rates: {said}")


def words(row: PipelineRate) -> str:
    """Return ``248 samples/s (240 to 256), storage``."""
    spread = numbers.limits(row.samples_per_s)
    rate = f"{numbers.value(row.samples_per_s)} samples/s{f' ({spread})' if spread else ''}"
    return f"{rate}, {row.binding}" if row.binding else rate


def _mark(axes: Any, row_at: int, row: PipelineRate) -> None:
    shift, marker, colour = STATES[row.cache]
    y = row_at + shift
    if (rate := row.samples_per_s) is None:
        return
    if rate.limited:
        axes.plot([max(rate.low, rate.value / 100), rate.high], [y, y], color=plots.INK, lw=1.2)
    axes.plot(rate.value, y, marker, color=colour, ms=7)
    text = f"{numbers.number(rate.value)}  {(row.binding or '').replace('_', ' ')}".rstrip()
    right = rate.high if rate.limited else rate.value
    axes.annotate(
        text, (right, y), xytext=(7, 0), textcoords="offset points", va="center", fontsize=8,
        color=plots.INK,
    )  # fmt: skip


def _stages(rows: list[PipelineRate]) -> str:
    return " and ".join(
        dict.fromkeys({"train": "training", "load": "loading"}[r.stage] for r in rows)
    )
