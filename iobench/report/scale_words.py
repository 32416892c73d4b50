"""Scaling studies, their model and stragglers as cells and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iobench.analysis.results import SuiteResult
from iobench.analysis.scale_results import ScaleModel, ScalePoint, ScalingStudy, StragglerResult
from iobench.report import numbers

HEADS = ("case", "rung", "nodes", "ranks", "samples/s", "speedup", "efficiency")
#: A model that was further off where it was measured says nothing of more ranks.
TRUSTED = 0.2
PREDICTED = ("nodes", "ranks", "samples/s", "worst case", "limit", "measured", "error")


def rows(study: ScalingStudy) -> list[tuple[str, ...]]:
    """Return the cells of a study, one row a rung and case: :data:`HEADS`."""
    order = list(dict.fromkeys((p.stage, p.cache) for p in study.points))
    points = sorted(study.points, key=lambda p: (order.index((p.stage, p.cache)), p.ranks, p.nodes))
    return [_row(point) for point in points]


def _row(point: ScalePoint) -> tuple[str, ...]:
    first = not point.speedup.method
    return (
        point.case,
        f"{point.stage} {point.cache}".removesuffix(" -"),
        str(point.nodes),
        str(point.ranks),
        numbers.value(point.samples_per_s),
        "1" if first else _with_limits(point.speedup.value, numbers.bracketed(point.speedup)),
        "" if first else numbers.percent(point.efficiency.value),
    )


def _with_limits(value: float, limits: str) -> str:
    return f"{value:.2f} {limits}".strip()


def predicted(model: ScaleModel) -> list[tuple[str, ...]]:
    """Return the cells of a model's predictions: :data:`PREDICTED`."""
    return [
        (
            f"{p.nodes:,}",
            f"{p.ranks:,}",
            numbers.number(p.samples_per_s),
            numbers.number(p.worst),
            p.limit,
            numbers.number(p.measured) if p.measured else "",
            "" if p.error is None else f"{100 * p.error:+.1f} %",
        )
        for p in model.predictions
    ]


def doubt(model: ScaleModel) -> str:
    """Return a warning where a model was far off on the ranks that were measured, else ""."""
    off = max((abs(p.error) for p in model.predictions if p.error is not None), default=0.0)
    if off <= TRUSTED:
        return ""
    return f": do not rely on it, it was {100 * off:.0f} % off where it was measured"


def parts(model: ScaleModel) -> str:
    """Return the parts of a step that a model was made of, in one sentence."""
    words = [
        f"{model.cache}: loading a batch {numbers.milliseconds(model.io_s)} ms",
        f"computing {numbers.milliseconds(model.compute_s)} ms",
    ]
    if model.exchange_ranks:
        rate = f", {numbers.number(1e-6 / model.byte_s)} MB/s" if model.byte_s else ""
        words.append(
            f"an exchange {numbers.milliseconds(model.latency_s)} ms and its bytes{rate} on "
            f"{model.exchange_ranks} ranks, {numbers.milliseconds(model.exposed_s)} ms of a step "
            "not hidden behind computing"
        )
    return "; ".join(filter(None, (", ".join(words), model.note)))


def stragglers(suite: SuiteResult) -> list[str]:
    """Return one line a straggler."""
    return [_straggler(one) for one in suite.stragglers]


def _straggler(one: StragglerResult) -> str:
    limits = numbers.limits(one.excess_s, numbers.milliseconds)
    spread = f", {limits}" if limits else ""
    cause = {"arrival": "by beginning later"}
    by = cause.get(one.cause, f"to {one.cause}")
    if one.others_wait_s is not None:
        by += f"; the others wait up to {numbers.milliseconds(one.others_wait_s)} ms a step for it"
    return (
        f"{one.case}, {one.stage} {one.cache}".removesuffix(" -")
        + f": rank {one.rank} on {one.node} takes {numbers.percent(one.share)} longer for its part "
        f"of a step than the others ({numbers.milliseconds(one.excess_s.value)} ms{spread}), {by}"
    )


def titles(studies: Sequence[ScalingStudy]) -> Iterator[tuple[str, ScalingStudy]]:
    """Yield (title, study): what is kept the same when ranks are added."""
    for study in studies:
        same = "the same batch on every rank" if study.kind == "weak" else "the same batch in all"
        yield f"{study.name}: {study.kind} scaling, {same}", study
