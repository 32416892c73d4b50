"""Scaling studies: the cases of a suite that differ in ranks and nodes alone, rung by rung.

docs/method.md, "Many ranks"."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from iobench.analysis.evidence import Evidence, standing
from iobench.analysis.pairs import complete_pairs, proven
from iobench.analysis.scale_model import model
from iobench.analysis.scale_results import STRONG, WEAK, ScalePoint, ScalingStudy
from iobench.core import stages
from iobench.core.cases import Case
from iobench.equations import stats
from iobench.equations.signed_rank import FLOOR_PAIRS
from iobench.equations.stats import Interval


def studies(found: Evidence) -> list[ScalingStudy]:
    """Return the scaling studies of a suite; a point is there as soon as its rung was measured."""
    out = []
    for kind, cases in series(found.plan.cases):
        points = [p for case in cases for p in _points(found, cases[0], case)]
        if points:
            models = [m for cache in ("cold", "warm") if (m := model(found, cases, cache))]
            out.append(ScalingStudy(_name(cases), kind, points, models if kind == WEAK else []))
    return out


def series(cases: Sequence[Case]) -> Iterator[tuple[str, list[Case]]]:
    """Yield (kind, cases by ranks) of every study of two cases or more."""
    for kind in (WEAK, STRONG):
        found: dict[Any, list[Case]] = {}
        for case in cases:
            batch = case.batch if kind == WEAK else case.batch * case.world_size
            alike = dataclasses.replace(case, label="", world_size=1, nodes=1, batch=batch)
            found.setdefault(repr(alike), []).append(case)
        for together in found.values():
            if len({case.world_size for case in together}) > 1:
                yield kind, sorted(together, key=lambda c: (c.world_size, c.nodes))


def _name(cases: Sequence[Case]) -> str:
    """Return what the labels of all cases have in common."""
    words = [case.label.split(" ") for case in cases]
    return " ".join(w for w in words[0] if all(w in others for others in words[1:]))


def _points(found: Evidence, base: Case, case: Case) -> Iterator[ScalePoint]:
    for stage in stages.rungs():
        for cache in ("cold", "warm", "-"):
            point = None if stage == "ceiling" else _point(found, base, case, stage, cache)
            if point:
                yield point


def _point(found: Evidence, base: Case, case: Case, stage: str, cache: str) -> ScalePoint | None:
    ours, theirs = (_seconds(found, one, stage, cache) for one in (case, base))
    if not ours or not theirs:
        return None
    speedup, paired = _speedup(found, base, case, stage, cache)
    more = base.world_size / case.world_size
    efficiency = dataclasses.replace(
        speedup, value=speedup.value * more, low=speedup.low * more, high=speedup.high * more
    )
    return ScalePoint(
        case=case.label,
        nodes=case.nodes,
        ranks=case.world_size,
        stage=stage,
        cache=cache,
        samples_per_s=stats.t_interval(ours).inverse(),
        speedup=speedup,
        efficiency=efficiency,
        paired=paired,
        standing=standing(speedup.n),
    )


def _speedup(
    found: Evidence, base: Case, case: Case, stage: str, cache: str
) -> tuple[Interval, bool]:
    """Return (seconds a sample of the base over those of the case, whether they were paired)."""
    if case.label == base.label:
        return Interval(
            1.0, 1.0, 1.0, stats.LEVEL, len(_seconds(found, base, stage, cache)), ""
        ), False
    for contrast in found.plan.contrasts:
        if (contrast.stage, contrast.cache) != (stage, cache):
            continue
        if {contrast.arm, contrast.base} == {case.label, base.label}:
            sides = [pair.seconds_per_sample for pair in proven(complete_pairs(found, contrast))]
            if len(sides) >= FLOOR_PAIRS:
                arms, bases = zip(*sides, strict=True)
                more = (arms, bases) if contrast.arm == base.label else (bases, arms)
                return stats.paired_ratio(*more), True
    return stats.unpaired_ratio(
        _seconds(found, base, stage, cache), _seconds(found, case, stage, cache)
    ), False


def _seconds(found: Evidence, case: Case, stage: str, cache: str) -> list[float]:
    """Return the seconds a sample of every trial of a rung; compute's may be an equal case's."""
    if stage == "compute":
        windows = found.compute(case)[0] if cache == "-" else []
    else:
        windows = found.windows(case, stage, cache)
    return [w.seconds_per_sample for w in windows]
