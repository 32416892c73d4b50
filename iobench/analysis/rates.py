"""Every pipeline's rate beside its limit: which loader and format suit this mount and trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from iobench.analysis.case_results import CaseResult, NoRate, RateResult
from iobench.analysis.results import SuiteResult
from iobench.core import registry
from iobench.core.errors import ResultsError
from iobench.equations.stats import Interval

#: Version of the document that :func:`by` makes.
RATES_SCHEMA = 1
#: What tells pipelines apart, their settings left out.
TOLD_APART = ("loader", "format", "decoder")


@dataclasses.dataclass(frozen=True)
class PipelineRate:
    """One case at one cache state; ``by``: the settings that rows are grouped by.

    ``stage``: ``train``, or ``load`` where no training was measured.  ``binding``: the roof that
    limits training, with its ``regime``; None for the ``reason`` given.  ``decoding_threads``: of
    each rank.
    """

    by: Mapping[str, Any]
    case: str
    cache: str
    stage: str
    samples_per_s: Interval | None
    trials: int
    standing: str
    binding: str | None
    regime: str | None
    reason: str
    decoding_threads: int


@dataclasses.dataclass(frozen=True)
class RateTable:
    """All rates of a suite, the group of the fastest case first; ``host``: whose figures.

    ``note``: that pipelines read and decode with unequal numbers of threads, "" where they do not.
    """

    schema: int
    name: str
    created: str
    host: str
    location: str
    by: Sequence[str]
    rows: Sequence[PipelineRate]
    note: str = ""


def _stored_form(case: CaseResult) -> str:
    return case.pipeline.partition(":")[2]


def _decoder(case: CaseResult) -> str:
    """Return the case's decoder; "" of a loader that decodes by itself, or of stored pixels."""
    loader = registry.known("loaders", case.loader)
    return case.decoder if loader and loader.decodes and "-" not in _stored_form(case) else ""


def _field(name: str) -> Callable[[CaseResult], Any]:
    return lambda case: getattr(case, name)


#: What rows can be grouped by -> its value of a case.
KEYS: Mapping[str, Callable[[CaseResult], Any]] = {
    "loader": _field("loader"),
    "format": _stored_form,
    "decoder": _decoder,
    **{
        name: _field(name)
        for name in ("trainer", "runtime", "placement", "order", "transform", "batch", "workers",
                     "prefetch", "world_size")
    },
}  # fmt: skip


def by(suite: SuiteResult, keys: Sequence[str] = TOLD_APART) -> RateTable:
    """Return the rates of every case that loads data, grouped by ``keys``.

    Raises ResultsError for a key that is not in ``KEYS``.
    """
    if unknown := [key for key in keys if key not in KEYS]:
        raise ResultsError(f"--by {', '.join(unknown)}: not a key; there are {', '.join(KEYS)}")
    cases = [rows for case in suite.pipelines if (rows := _rows(case, keys))]
    best: dict[tuple[Any, ...], float] = {}
    for rows in cases:
        best[_group(rows)] = max(best.get(_group(rows), 0.0), _worth(rows))
    cases.sort(key=lambda rows: (-best[_group(rows)], _group(rows), -_worth(rows)))
    compared = {row.case for rows in cases for row in rows if row.samples_per_s}
    return RateTable(
        schema=RATES_SCHEMA,
        name=suite.name,
        created=suite.created,
        host=next((host.host for host in suite.hosts if host.figures), ""),
        location=suite.dataset.root,
        by=list(keys),
        rows=[row for rows in cases for row in rows],
        note=_unequal_threads([case for case in suite.pipelines if case.case in compared]),
    )


def _unequal_threads(cases: Sequence[CaseResult]) -> str:
    """Return a note where pipelines read and decode with other numbers of threads, else ""."""
    pipelines: dict[str, set[int]] = {}
    counts: dict[int, list[str]] = {}
    for case in cases:
        if count := case.decoding_threads:
            pipelines.setdefault(case.pipeline, set()).add(count)
            counts.setdefault(count, []).append(case.case)
    if len({frozenset(each) for each in pipelines.values()}) < 2:
        return ""
    parts = [f"{count} of {', '.join(names)}" for count, names in sorted(counts.items())]
    return f"threads of a rank that read and decode are not equally many: {'; '.join(parts)}"


def _group(rows: Sequence[PipelineRate]) -> tuple[str, ...]:
    return tuple(map(str, rows[0].by.values()))


def _worth(rows: Sequence[PipelineRate]) -> float:
    """Return the rate at the first cache state: cold, where both were measured."""
    return rows[0].samples_per_s.value if rows[0].samples_per_s else 0.0


def _rows(case: CaseResult, keys: Sequence[str]) -> list[PipelineRate]:
    """Return one row a cache state that training or loading was planned at."""
    values = {key: KEYS[key](case) for key in keys}
    return [
        _row(case, values, cache, stage, rung)
        for cache, rungs in sorted(_planned(case).items())
        for stage, rung in [_chosen(rungs)]
    ]


def _row(
    case: CaseResult, by: Mapping[str, Any], cache: str, stage: str, rung: RateResult | NoRate
) -> PipelineRate:
    limit = case.limits["cold" if cache == "cold" else "warm"]
    measured = isinstance(rung, RateResult)
    return PipelineRate(
        by=by,
        case=case.case,
        cache=cache,
        stage=stage,
        samples_per_s=rung.samples_per_s,
        trials=rung.n,
        standing=rung.standing if isinstance(rung, RateResult) else "",
        binding=limit.binding if measured else None,
        regime=limit.regime if measured else None,
        reason=limit.reason if isinstance(rung, RateResult) else rung.reason,
        decoding_threads=case.decoding_threads,
    )


def _planned(case: CaseResult) -> dict[str, dict[str, RateResult | NoRate]]:
    """Return cache state -> stage -> its rung, of training and loading."""
    found: dict[str, dict[str, RateResult | NoRate]] = {}
    for stage in ("train", "load"):
        for cache, rung in case.stages[stage].caches.items():
            found.setdefault(cache, {})[stage] = rung
    return found


def _chosen(rungs: Mapping[str, RateResult | NoRate]) -> tuple[str, RateResult | NoRate]:
    """Return training if it was measured, else loading, else what was planned first."""
    items = list(rungs.items())
    return next((item for item in items if isinstance(item[1], RateResult)), items[0])
