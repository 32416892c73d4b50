"""What files cost, and what later epochs find in memory: in analysis, report and CSV."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Tuple

import pytest

from iobench.analysis.case_results import CaseResult
from iobench.analysis.suite import analyse
from iobench.core.cases import Plan, Trial
from iobench.core.records import VALID, Record
from iobench.report import html, storage_words
from iobench.report.csv import trials_frame
from tests.build import report as fixture
from tests.unit.analysis import test_storage

LABEL = "torch:jpeg"


def noted(name: str, note: Any, repeats: int = 2) -> Tuple[Plan, List[Record]]:
    """Return the fixture's suite with trials of a stage whose rank left a note."""
    plan, records = test_storage.measured("bandwidth")
    case = next(c for c in plan.cases if c.label == LABEL)
    like = next(r for r in records if r.trial.stage == "read" and r.status == VALID)
    trials = [Trial(f"99{i}-{name}", case, name, "cold", block=i) for i in range(repeats)]
    rank = dataclasses.replace(like.ranks[0], notes={name: note})
    made = [dataclasses.replace(like, trial=t, ranks=(rank,)) for t in trials]
    return dataclasses.replace(plan, trials=(*plan.trials, *trials)), [*records, *made]


def metadata(opens: float, *, dropped: bool = False) -> Dict[str, Any]:
    return {
        "points": [
            {"files": n, "processes": p, "operation": o, "count": 1000, "seconds": 1000 / rate}
            for n in (1000, 10_000)
            for p in (1, 4, 16)
            for o, rate in (
                ("create", 900.0), ("stat", 9000.0), ("open", opens), ("unlink", 700.0),
            )
        ],
        "left_out": "100,000 files a directory: filling takes over 30 s at 900 files/s",
        "dropped": dropped,
    }  # fmt: skip


def pipeline(plan: Plan, records: List[Record], label: str = LABEL) -> CaseResult:
    return next(c for c in analyse(plan, records).pipelines if c.case == label)


def test_opens_bind_where_they_are_fewer_than_the_bytes_allow() -> None:
    plan, records = noted("metadata", metadata(opens=265.0))
    records = [
        dataclasses.replace(r, ceiling={**r.ceiling, "opens": r.ceiling["samples"]})
        if r.ceiling.get("samples") else r
        for r in records
    ]  # fmt: skip
    found = pipeline(plan, records)
    assert found.metadata is not None
    assert [(r.files, r.processes) for r in found.metadata.rates][:2] == [(1000, 1), (1000, 4)]
    assert found.metadata.rates[0].per_s["open"].value == pytest.approx(265.0)
    assert found.metadata.rates[0].per_s["open"].limited
    assert found.storage is not None
    assert found.storage.roofs["metadata"] == pytest.approx(265, rel=0.02)
    page = html.render(plan, records, analyse(plan, records))
    assert '<table class="metadata"' in page
    assert "stat and open of files that this client created" in page
    assert "filling takes over 30 s" in page
    assert "create 900" in storage_words.metadata(found)


def test_names_that_were_dropped_are_said_to_be() -> None:
    plan, records = noted("metadata", metadata(opens=265.0, dropped=True))
    assert "names and attributes were dropped" in storage_words.metadata(pipeline(plan, records))


@pytest.mark.parametrize(
    ("open_s", "read_s", "binds"), [(8.0, 1.0, "files bind"), (1.0, 8.0, "its bytes bind")]
)
def test_small_files_are_told_from_slow_bytes(open_s: float, read_s: float, binds: str) -> None:
    points = [
        {"processes": p, "files": 1000, "bytes": 10**8, "seconds": 9.1 / p, "open_s": open_s,
         "read_s": read_s, "close_s": 0.1}
        for p in (1, 4)
    ]  # fmt: skip
    plan, records = noted("files", points)
    found = pipeline(plan, records)
    assert found.metadata is not None
    assert [w.processes for w in found.metadata.whole_files] == [1, 4]
    assert binds in found.metadata.words
    assert f"open {open_s:.2f} ms, read {read_s:.2f} ms, close 0.10 ms" in found.metadata.words
    assert binds in html.render(plan, records, analyse(plan, records))


def test_cases_on_one_mount_share_the_table() -> None:
    plan, records = noted("metadata", metadata(opens=265.0))
    found = analyse(plan, records).pipelines
    assert len(storage_words.many_files(found)) == 1
    assert {c.case for c in found if c.metadata} >= {LABEL, "dali:jpeg", "torch:lmdb"}


def test_later_epochs_have_a_hit_ratio_between_two_caches() -> None:
    plan, records = fixture.suite()
    like = next(r for r in records if r.trial.stage == "read" and r.trial.case.label == LABEL)
    trial = Trial("9990-steady", like.trial.case, "read", "steady", block=1)
    (rank,) = like.ranks
    steps = dataclasses.replace(rank.steps, warmup=len(rank.steps.done_s) // 3)
    cache = dataclasses.replace(
        like.cache, label="steady", bytes_needed=300, bytes_storage=200, resident_after=0.6
    )
    made = dataclasses.replace(
        like, trial=trial, cache=cache, ranks=(dataclasses.replace(rank, steps=steps),),
        status=VALID, reasons=(),
    )  # fmt: skip
    plan = dataclasses.replace(plan, trials=(*plan.trials, trial))
    records = [*records, made]
    found = pipeline(plan, records)
    assert found.steady is not None
    assert found.steady.hit_ratio.value == pytest.approx(0.5)
    assert found.steady.lru == pytest.approx(0.6 + 0.4 * -0.9163, abs=1e-3)
    assert found.steady.no_evict == 0.6
    assert "50% of the bytes needed came from memory" in storage_words.steady(found)
    assert "steady: read " in html.render(plan, records, analyse(plan, records))
    row = trials_frame(plan, records).set_index("trial").loc["9990-steady"]
    assert row["hit_ratio"] == pytest.approx(0.5)
    assert row["samples_per_s"] > 0

    cache = dataclasses.replace(made.cache, bytes_storage=700)
    found = pipeline(plan, [*records[:-1], dataclasses.replace(made, cache=cache)])
    assert "3.0 x the bytes needed crossed the mount" in storage_words.steady(found)
