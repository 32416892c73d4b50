"""Trajectories under the rooflines: the points of one job joined as one knob grows.

After Ibrahim, Williams and Oliker's roofline scaling trajectories and Javed, Ibrahim and Lu (CCF
THPC 1, 2019): docs/method.md, "Trajectories".
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from iobench.analysis.case_results import CaseResult
from iobench.core.cases import Case

#: What a trajectory grows, and its value of a case as planned and as found.
KNOBS = ("threads", "batch", "workers")
#: Fields of a case that its other settings decide, or that name it.
_FOLLOWING = {"label": "", "name": "", "location": "", "layout": ""}
#: A trajectory has at least so many points.
FEWEST = 2


@dataclasses.dataclass(frozen=True)
class TrajectoryPoint:
    """One case of a trajectory: rates in samples/s, ``flops`` of training; None: not measured."""

    value: int
    case: str
    load: float | None
    compute: float | None
    train: float | None
    flops: float | None
    peak_flops: float | None


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """The points of one ``job`` as ``knob`` grows, in its order."""

    knob: str
    job: str
    cache: str
    points: Sequence[TrajectoryPoint]


def trajectories(planned: Sequence[Case], found: Sequence[CaseResult]) -> list[Trajectory]:
    """Return every line of two cases or more that differ in one knob alone."""
    results = {result.case: result for result in found}
    out = []
    for knob in KNOBS:
        groups: dict[str, dict[int, Case]] = {}
        for case in planned:
            if (value := _value(knob, case, results[case.label])) is not None:
                groups.setdefault(_rest(knob, case), {}).setdefault(value, case)
        for cases in groups.values():
            out += list(_lines(knob, cases, results))
    return _apart(out)


def _apart(lines: Sequence[Trajectory]) -> list[Trajectory]:
    """Give those of one name that of their first case beside it."""
    names = Counter((line.knob, line.cache, line.job) for line in lines)
    return [
        dataclasses.replace(line, job=f"{line.job} ({line.points[0].case})")
        if names[line.knob, line.cache, line.job] > 1
        else line
        for line in lines
    ]


def _job(case: Case) -> str:
    return f"{case.trainer_options.get('net') or case.trainer}, {case.pipeline}"


def _lines(
    knob: str, cases: dict[int, Case], results: dict[str, CaseResult]
) -> Iterator[Trajectory]:
    for cache in ("cold", "warm"):
        points = [_point(value, results[cases[value].label], cache) for value in sorted(cases)]
        points = [p for p in points if p.train is not None or p.load is not None]
        if len(points) >= FEWEST:
            yield Trajectory(knob, _job(cases[points[0].value]), cache, points)


def _point(value: int, result: CaseResult, cache: str) -> TrajectoryPoint:
    load, train = result.rate("load", cache), result.rate("train", cache)
    roof = result.compute_roof
    return TrajectoryPoint(
        value=value,
        case=result.case,
        load=load.value if load else None,
        compute=result.limits[cache].roofs.get("compute"),
        train=train.value if train else None,
        flops=roof.flop_per_sample * train.value if roof and train else None,
        peak_flops=roof.peak_flops if roof else None,
    )


def _value(knob: str, case: Case, result: CaseResult) -> int | None:
    """Return a case's value of a knob; threads: as many as its trainer really had."""
    if knob != "threads":
        return int(getattr(case, knob))
    if result.compute_roof:
        return result.compute_roof.threads
    return int(case.trainer_options.get("threads") or 0) or None


def _rest(knob: str, case: Case) -> str:
    """Return what cases of one trajectory have in common."""
    options: dict[str, Any] = dict(case.trainer_options)
    changes: dict[str, Any] = {**_FOLLOWING, "trainer_options": options}
    if knob == "threads":
        options.pop("threads", None)
    else:
        changes[knob] = 0
    changes["trainer_options"] = dict(sorted(options.items()))
    return repr(dataclasses.replace(case, **changes))
