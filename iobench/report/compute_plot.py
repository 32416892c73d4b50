"""The trainer's roofline, and trajectories under the rooflines: one picture each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iobench.analysis.case_results import CaseResult
from iobench.analysis.trainer_results import ComputeRoof
from iobench.analysis.trajectories import Trajectory, TrajectoryPoint
from iobench.report import numbers, plots

GIGA = 1e9
#: The axis of FLOP a byte of memory traffic.
INTENSITY = (0.1, 1000.0)
#: Roofs within this ratio have their names above each other.
CLOSE = 1.3
#: Lines of one picture: more cannot be told apart.
MOST = len(plots.PALETTE)


def compute(cases: Sequence[CaseResult]) -> str:
    """Return Williams' roofline of every trainer; "" where none was measured.

    Its memory traffic is not counted, so a trainer is a line, not a point: from the least
    intensity with which its FLOP/s are possible.
    """
    shown: dict[tuple[float, int], tuple[str, ComputeRoof]] = {}
    for case in cases:
        if (roof := case.compute_roof) and roof.compute_flops:
            shown.setdefault((roof.compute_flops, roof.threads), (case.case, roof))
    if not shown:
        return ""
    rows = sorted(list(shown.values())[:MOST], key=lambda row: -(row[1].compute_flops or 0))

    def draw(axes: Any) -> None:
        roofs = {roof.threads: roof for _, roof in rows}
        below, lift = 0.0, 3
        for threads, roof in sorted(roofs.items(), key=lambda item: item[1].peak_flops):
            peak, ridge = roof.peak_flops / GIGA, roof.ridge
            lift = lift + 11 if peak < CLOSE * below else 3
            below = peak
            low = INTENSITY[0] * roof.memory_bytes_per_s / GIGA
            axes.plot(
                [INTENSITY[0], ridge, INTENSITY[1]], [low, peak, peak], color=plots.INK, lw=1.3
            )
            axes.annotate(
                f"{threads} thread{'s' * (threads > 1)}: {numbers.number(peak)} GFLOP/s, "
                f"{numbers.number(roof.memory_bytes_per_s / GIGA)} GB/s",
                (INTENSITY[1], peak), xytext=(0, lift), textcoords="offset points", ha="right",
                fontsize=8, color=plots.INK,
            )  # fmt: skip
        for colour, (name, roof) in zip(plots.PALETTE, rows, strict=False):
            flops, least = (roof.compute_flops or 0) / GIGA, roof.least_intensity or INTENSITY[0]
            share = numbers.percent(flops * GIGA / roof.peak_flops)
            axes.plot([least, INTENSITY[1]], [flops, flops], color=colour, lw=2, alpha=0.55,
                      label=f"{plots.wrap(_short(name))}: {share}")  # fmt: skip
            axes.plot(least, flops, "|", color=colour, ms=10, mew=2)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(*INTENSITY)
        top = max(roof.peak_flops for _, roof in rows) / GIGA
        axes.set_ylim(min((roof.compute_flops or 0) for _, roof in rows) / GIGA / 4, top * 2)
        axes.set_xlabel("FLOP a byte of memory traffic (log)")
        axes.set_ylabel("GFLOP/s (log)")
        plots.legend(axes, 2)

    said = "; ".join(
        f"{name} computes {numbers.number((roof.compute_flops or 0) / GIGA)} of "
        f"{numbers.number(roof.peak_flops / GIGA)} GFLOP/s"
        for name, roof in rows
    )
    height = 3.2 + 0.17 * len(rows)
    return plots.svg(draw, height, f"Roofline of the trainer: {said}")


def knobs(lines: Sequence[Trajectory]) -> str:
    """Return the FLOP/s of training as a knob grows, the peak dashed; "" without any."""
    found = [line for line in lines if sum(p.flops is not None for p in line.points) > 1][:MOST]
    if not found:
        return ""

    def draw(axes: Any) -> None:
        for colour, line in zip(plots.PALETTE, found, strict=False):
            known = [p for p in line.points if p.flops is not None]
            places = [max(p.value, 0.5) for p in known]
            axes.plot(places, [(p.flops or 0) / GIGA for p in known], "o-", color=colour, ms=5,
                      label=plots.wrap(_name(line)))  # fmt: skip
            axes.plot(places, [(p.peak_flops or 0) / GIGA for p in known], "--", color=colour, lw=1)
            for place, point in zip(places, known, strict=True):
                _mark(axes, place, (point.flops or 0) / GIGA, point)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ticks = sorted({p.value for line in found for p in line.points})
        axes.set_xticks([max(t, 0.5) for t in ticks], [str(t) for t in ticks])
        axes.minorticks_off()
        axes.set_xlabel("threads, batch or workers (log); dashed: the peak with these threads")
        axes.set_ylabel("GFLOP/s of training (log)")
        plots.legend(axes, 2)

    return plots.svg(draw, 3.4 + 0.17 * len(found), f"FLOP/s of training: {_said(found)}")


def pipeline(lines: Sequence[Trajectory]) -> str:
    """Return training against the input pipeline alone, under both their roofs; "" without any."""
    found = [line for line in lines if sum(_both(p) for p in line.points) > 1][:MOST]
    if not found:
        return ""
    points = [p for line in found for p in line.points if _both(p)]
    rates = [rate for p in points for rate in (p.load, p.train, p.compute) if rate]

    def draw(axes: Any) -> None:
        low, high = min(rates) / 1.6, max(rates) * 1.6
        axes.plot([low, high], [low, high], color=plots.INK, lw=1.3)
        axes.annotate("the input pipeline binds", (low, low), xytext=(8, 14), rotation=0,
                      textcoords="offset points", fontsize=8, color=plots.INK)  # fmt: skip
        for colour, line in zip(plots.PALETTE, found, strict=False):
            known = [p for p in line.points if _both(p)]
            axes.plot([p.load for p in known], [p.train for p in known], "o-", color=colour, ms=5,
                      label=plots.wrap(_name(line)))  # fmt: skip
            for point in known:
                _mark(axes, point.load or 0, point.train or 0, point)
                if point.compute:
                    axes.plot(point.load, point.compute, "_", color=colour, ms=12, mew=2)
        axes.set_yscale("log")
        plots.log_ticks(axes, low, high)
        axes.set_ylim(low, high)
        axes.set_xlabel("samples/s of the input pipeline alone (log)")
        axes.set_ylabel("samples/s of training (log)")
        axes.plot([], [], "_", color=plots.INK, ms=12, mew=2, label="its compute alone")
        plots.legend(axes, 2)

    return plots.svg(draw, 3.6 + 0.17 * len(found), f"Trajectories: {_said(found)}")


def _short(label: str) -> str:
    return label.replace("trainer_options=", "")


def _both(point: TrajectoryPoint) -> bool:
    return bool(point.load and point.train)


def _name(line: Trajectory) -> str:
    return f"{line.knob}: {line.job}"


def _mark(axes: Any, x: float, y: float, point: TrajectoryPoint) -> None:
    axes.annotate(str(point.value), (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8,
                  color=plots.INK)  # fmt: skip


def _said(lines: Sequence[Trajectory]) -> str:
    return "; ".join(
        f"{_name(line)} " + ", ".join(
            f"{numbers.number(p.train)} samples/s at {p.value}" for p in line.points if p.train
        )
        for line in lines
    )  # fmt: skip
