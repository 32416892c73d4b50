"""Two suites side by side, also from two machines or dates: ratios, never a verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from iobench.analysis.confounders import differences
from iobench.analysis.evidence import Evidence, evidence, trial_window, usable
from iobench.core import stages
from iobench.core.cases import Case, Plan, alike
from iobench.core.errors import ResultsError
from iobench.core.records import EXPLORATORY, Record
from iobench.equations import stats

#: Version of the document that :func:`compare_suites` returns.
COMPARE_SCHEMA = 1
#: What names a case and where it lay; its data are compared by digest.
_NOT_THE_CASE = ("label", "location", "seed")


@dataclasses.dataclass(frozen=True)
class ComparedSuite:
    """Which suite it is; ``folder`` is where its results lie, ``host`` whose figures they are."""

    name: str
    created: str
    version: str
    folder: str
    host: str


@dataclasses.dataclass(frozen=True)
class ComparedRung:
    """One rung in both suites; ``ratio`` is B / A in seconds a sample.

    ``samples_per_s`` and ``trials``: "a" and "b" -> value.  ``same_order``: None where no data is
    read or the order was not recorded.
    """

    case: str
    case_b: str
    stage: str
    cache: str
    ratio: stats.Interval
    samples_per_s: Mapping[str, float]
    trials: Mapping[str, int]
    same_order: bool | None
    standing: str = EXPLORATORY


@dataclasses.dataclass(frozen=True)
class Difference:
    """A difference between the suites, and the cases that it holds for (empty: all)."""

    text: str
    cases: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What two suites have in common; ``only_in``: "a" and "b" -> labels of cases.

    ``facts``: how many fingerprints were compared.
    """

    schema: int
    standing: str
    note: str
    a: ComparedSuite
    b: ComparedSuite
    rows: Sequence[ComparedRung]
    differences: Sequence[Difference]
    only_in: Mapping[str, Sequence[str]]
    facts: int


def compare_suites(
    a: tuple[Plan, Sequence[Record]],
    b: tuple[Plan, Sequence[Record]],
    *,
    folders: tuple[str, str] = ("", ""),
) -> Comparison:
    """Compare two suites, B / A in seconds per sample.

    ``folders``: where their results lie.  Raises ResultsError if they are one and the same suite,
    measured other samples or share no case.
    """
    if folders[0] and folders[0] == folders[1]:
        raise ResultsError(f"A and B are the same suite, {folders[0]}: name two results folders")
    _check_dataset(a[0], b[0])
    first, second = evidence(*a), evidence(*b)
    pairs = _common(a[0].cases, b[0].cases)
    if not pairs:
        labels = [", ".join(c.label for c in plan.cases) for plan in (a[0], b[0])]
        raise ResultsError(f"no case is in both: A has {labels[0]}; B has {labels[1]}")
    rows = [
        row
        for one, other in pairs
        for stage, cache in _rungs(first, one, second, other)
        if (row := _row(first, one, second, other, stage, cache))
    ]
    return Comparison(
        schema=COMPARE_SCHEMA,
        standing=EXPLORATORY,
        note="the two suites share no block: ratios with unpaired intervals, no verdict",
        a=alike(ComparedSuite, a[0], folder=folders[0], host=first.home),
        b=alike(ComparedSuite, b[0], folder=folders[1], host=second.home),
        rows=rows,
        differences=_differences(first, second, pairs),
        only_in={
            "a": sorted({c.label for c in a[0].cases} - {p[0].label for p in pairs}),
            "b": sorted({c.label for c in b[0].cases} - {p[1].label for p in pairs}),
        },
        facts=sum(
            len(_fingerprints(first, one).keys() & _fingerprints(second, other).keys())
            for one, other in pairs
        ),
    )


def _check_dataset(a: Plan, b: Plan) -> None:
    if a.dataset.digest != b.dataset.digest:
        said = [f"{d.name} ({d.samples} samples, digest {d.digest[:12]})"
                for d in (a.dataset, b.dataset)]  # fmt: skip
        raise ResultsError(
            f"A measured {said[0]}, B {said[1]}: seconds a sample of different samples are no "
            "comparison; run both on one dataset (the same recipe, samples and seed give the same)"
        )


def _common(a: Sequence[Case], b: Sequence[Case]) -> list[tuple[Case, Case]]:
    """Pair equal cases whatever they are called; then those of one name, though they differ."""
    found: dict[int, Case] = {}
    left = list(b)
    for what in (_settings, lambda case: case.label):
        for i, case in enumerate(a):
            other = next((o for o in left if what(o) == what(case)), None)
            if i not in found and other is not None:
                found[i] = other
                left.remove(other)
    return [(case, found[i]) for i, case in enumerate(a) if i in found]


def _settings(case: Case) -> dict[str, Any]:
    fields = (f.name for f in dataclasses.fields(case) if f.name not in _NOT_THE_CASE)
    return {n: v if not isinstance(v := getattr(case, n), dict) else sorted(v.items())
            for n in fields}  # fmt: skip


def _rungs(a: Evidence, one: Case, b: Evidence, other: Case) -> list[tuple[str, str]]:
    rungs = [name for name in stages.rungs() if not stages.of(name).on_host]
    both = [rung for rung in a.rungs(one) & b.rungs(other) if rung[0] in rungs]
    return sorted(both, key=lambda r: (rungs.index(r[0]), r[1]))


def _row(
    a: Evidence, one: Case, b: Evidence, other: Case, stage: str, cache: str
) -> ComparedRung | None:
    left, right = a.of(one, stage, cache), b.of(other, stage, cache)
    times = [
        [w.seconds_per_sample for r in side if (w := trial_window(r)) is not None]
        for side in (left, right)
    ]
    if not all(times):
        return None
    return ComparedRung(
        case=one.label,
        case_b=other.label,
        stage=stage,
        cache=cache,
        ratio=stats.unpaired_ratio(times[1], times[0]),
        samples_per_s={side: len(t) / sum(t) for side, t in zip("ab", times, strict=True)},
        trials={side: len(t) for side, t in zip("ab", times, strict=True)},
        same_order=_same_order(left, right) if stage in stages.contrasted() else None,
    )


def _same_order(left: Sequence[Record], right: Sequence[Record]) -> bool | None:
    """Return whether both sides saw the same samples in the same order; None: not recorded."""
    one, other = (
        {tuple(rank.order_digest for rank in r.ranks) for r in side if r.trial.epochs == 1}
        for side in (left, right)
    )
    if not one or not other:
        return None  # loops of many epochs differ in length from suite to suite
    return None if any("" in digests for digests in one | other) else one == other


def _differences(a: Evidence, b: Evidence, pairs: Sequence[tuple[Case, Case]]) -> list[Difference]:
    """Return every difference once, with the cases it was seen in: settings first, then facts."""
    found: dict[str, list[str]] = {}
    if a.plan.version != b.plan.version:
        found[f"iobench: {a.plan.version} against {b.plan.version}"] = []
    for one, other in pairs:
        lines = differences(
            {"case": {**_settings(one), "seed": one.seed}},
            {"case": {**_settings(other), "seed": other.seed}},
        )
        left, right = _fingerprints(a, one), _fingerprints(b, other)
        lines += [
            line for role in left if role in right for line in differences(left[role], right[role])
        ]
        for line in dict.fromkeys(lines):
            found.setdefault(line, []).append(one.label)
    return [
        Difference(text, [] if len(cases) == len(pairs) else cases) for text, cases in found.items()
    ]


def _fingerprints(found: Evidence, case: Case) -> dict[str, dict[str, Any]]:
    """Return stage -> the first fingerprint, with the mount as the driver saw it."""
    out: dict[str, dict[str, Any]] = {}
    for record in filter(found.at_home, usable(found.last.values())):
        if record.trial.case.label == case.label and record.trial.stage in stages.rungs():
            for rank in (rank for rank in record.ranks[:1] if rank.fingerprint):
                image = {"image": dict(record.runtime)} if record.runtime else {}
                out.setdefault(record.trial.stage, {**rank.fingerprint, **image})
    return out
