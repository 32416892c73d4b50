"""One picture a scaling study: samples/s over ranks, as measured and as the model has it."""

from __future__ import annotations

from typing import Any

from iobench.analysis.scale_results import ScalePoint, ScalingStudy
from iobench.report import numbers, plots


def scaling(study: ScalingStudy) -> str:
    """Return the rates of every rung over ranks; dashed: the model; dotted: speedup = ranks."""
    rungs: dict[str, list[ScalePoint]] = {}
    for point in study.points:
        name = f"{point.stage} {point.cache}".removesuffix(" -")
        rungs.setdefault(name, []).append(point)
    rungs = {name: points for name, points in rungs.items() if len(points) > 1}
    if not rungs:
        return ""
    colours = {name: plots.PALETTE[i % len(plots.PALETTE)] for i, name in enumerate(rungs)}

    def draw(axes: Any) -> None:
        for name, points in rungs.items():
            ranks = [p.ranks for p in points]
            rates = [p.samples_per_s.value for p in points]
            axes.plot(ranks, rates, "o-", color=colours[name], label=name, ms=5)
            first = rates[0] / ranks[0]
            axes.plot([ranks[0], ranks[-1]], [rates[0], first * ranks[-1]], ":", color=plots.GRID)
        for model in study.models:
            known = [(p.ranks, p.samples_per_s) for p in model.predictions]
            colour = colours.get(f"train {model.cache}", plots.INK)
            label = f"train {model.cache}, model"
            axes.plot(*zip(*known, strict=True), "--", color=colour, lw=1, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("ranks (log)")
        axes.set_ylabel("samples/s (log)")
        plots.legend(axes, 3)

    said = "; ".join(
        f"{name}: " + ", ".join(f"{numbers.value(p.samples_per_s)} on {p.ranks}" for p in points)
        for name, points in rungs.items()
    )
    return plots.svg(draw, 3.6, f"Scaling of {study.name}, samples/s by ranks: {said}")
