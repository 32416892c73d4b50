"""Two suites side by side, also from two machines or dates: ratios, never a verdict.

Runs that share no block may differ in anything, so every ratio B / A is EXPLORATORY, with an
unpaired interval, and every difference of the two fingerprints stands beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from iobench import stats
from iobench.contrasts import estimate
from iobench.errors import ResultsError
from iobench.figures import DATA_STAGES, Evidence, evidence, trial_window, usable
from iobench.fingerprint import differences
from iobench.model import EXPLORATORY, Case, Plan, Record
from iobench.store import Store

#: Version of the document that :func:`compare` returns.
COMPARE_SCHEMA = 1
STAGES = ("read", "decode", "load", "compute", "train")
#: What names a case and where it lay; its data are compared by digest.
_NOT_THE_CASE = ("label", "location", "seed")


def load(a: Store, b: Store) -> dict[str, Any]:
    """Return :func:`compare` of two results folders.

    Raises ResultsError where they are one and the same, or not comparable.
    """
    if a.folder.resolve() == b.folder.resolve():
        raise ResultsError(f"A and B are the same suite, {a.folder}: name two results folders")
    document = compare((a.plan(), a.records()), (b.plan(), b.records()))
    document["a"]["folder"], document["b"]["folder"] = str(a.folder), str(b.folder)
    return document


def compare(a: tuple[Plan, Sequence[Record]], b: tuple[Plan, Sequence[Record]]) -> dict[str, Any]:
    """Return what two suites have in common, B / A in seconds per sample, as JSON types.

    Raises ResultsError when they measured other samples or share no case.
    """
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
    return {
        "schema": COMPARE_SCHEMA,
        "standing": EXPLORATORY,
        "note": "the two suites share no block: ratios with unpaired intervals, no verdict",
        "a": _suite(a[0]),
        "b": _suite(b[0]),
        "rows": rows,
        "differences": _differences(first, second, pairs),
        "only_in": {
            "a": sorted({c.label for c in a[0].cases} - {p[0].label for p in pairs}),
            "b": sorted({c.label for c in b[0].cases} - {p[1].label for p in pairs}),
        },
    }


def _check_dataset(a: Plan, b: Plan) -> None:
    if a.dataset.digest != b.dataset.digest:
        said = [f"{d.name} ({d.samples} samples, digest {d.digest[:12]})"
                for d in (a.dataset, b.dataset)]  # fmt: skip
        raise ResultsError(
            f"A measured {said[0]}, B {said[1]}: seconds a sample of different samples are no "
            "comparison; run both on one dataset (the same recipe, samples and seed give the same)"
        )


def _suite(plan: Plan) -> dict[str, Any]:
    return {"name": plan.name, "created": plan.created, "version": plan.version, "folder": ""}


def _common(a: Sequence[Case], b: Sequence[Case]) -> list[tuple[Case, Case]]:
    """Pair equal cases whatever they are called; then those of one name, though they differ."""
    found: dict[int, Case] = {}
    left = list(b)
    for same in (_equal, _called_alike):
        for i, case in enumerate(a):
            other = next((o for o in left if same(case, o)), None)
            if i not in found and other is not None:
                found[i] = other
                left.remove(other)
    return [(case, found[i]) for i, case in enumerate(a) if i in found]


def _equal(one: Case, other: Case) -> bool:
    return _settings(one) == _settings(other)


def _called_alike(one: Case, other: Case) -> bool:
    return one.label == other.label


def _settings(case: Case) -> dict[str, Any]:
    fields = (f.name for f in dataclasses.fields(case) if f.name not in _NOT_THE_CASE)
    return {n: v if not isinstance(v := getattr(case, n), dict) else sorted(v.items())
            for n in fields}  # fmt: skip


def _rungs(a: Evidence, one: Case, b: Evidence, other: Case) -> list[tuple[str, str]]:
    seen = [
        {(t.stage, t.cache) for t in found.plan.trials if t.case.label == case.label}
        for found, case in ((a, one), (b, other))
    ]
    both = [rung for rung in seen[0] & seen[1] if rung[0] in STAGES]
    return sorted(both, key=lambda r: (STAGES.index(r[0]), r[1]))


def _row(
    a: Evidence, one: Case, b: Evidence, other: Case, stage: str, cache: str
) -> dict[str, Any] | None:
    left, right = a.of(one, stage, cache), b.of(other, stage, cache)
    times = _seconds(left), _seconds(right)
    if not all(times):
        return None
    return {
        "case": one.label,
        "case_b": other.label,
        "stage": stage,
        "cache": cache,
        "ratio": estimate(stats.unpaired_ratio(times[1], times[0])),
        "samples_per_s": {"a": _rate(times[0]), "b": _rate(times[1])},
        "trials": {"a": len(times[0]), "b": len(times[1])},
        "same_order": _same_order(left, right) if stage in DATA_STAGES else None,
        "standing": EXPLORATORY,
    }


def _seconds(records: Sequence[Record]) -> list[float]:
    windows = [trial_window(r) for r in records]
    return [w.seconds_per_sample for w in windows if w is not None]


def _rate(times: Sequence[float]) -> float:
    return len(times) / sum(times)


def _same_order(left: Sequence[Record], right: Sequence[Record]) -> bool | None:
    """Return whether both sides saw the same samples in the same order; None: not recorded."""
    seen = [{tuple(rank.order_digest for rank in r.ranks) for r in side} for side in (left, right)]
    if any("" in digests for side in seen for digests in side):
        return None
    return seen[0] == seen[1]


def _differences(
    a: Evidence, b: Evidence, pairs: Sequence[tuple[Case, Case]]
) -> list[dict[str, Any]]:
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
    everywhere = len(pairs)
    return [
        {"text": text, "cases": [] if len(cases) == everywhere else cases}
        for text, cases in found.items()
    ]


def _fingerprints(found: Evidence, case: Case) -> dict[str, dict[str, Any]]:
    """Return stage -> the first fingerprint, with the mount as the driver saw it."""
    out: dict[str, dict[str, Any]] = {}
    for record in usable(found.last.values()):
        if record.trial.case.label == case.label and record.trial.stage in STAGES:
            for rank in record.ranks[:1]:
                image = {"image": dict(record.runtime)} if record.runtime else {}
                out.setdefault(record.trial.stage, {**rank.fingerprint, **image})
    return out
