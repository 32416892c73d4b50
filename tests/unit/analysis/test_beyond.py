"""What is known of the servers' caches: in analysis, report and CSV."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Sequence, Tuple

import pytest

from iobench.analysis.beyond import LARGER, SMALLER
from iobench.analysis.suite import analyse
from iobench.core.cases import Plan
from iobench.core.records import FIRST_TOUCH, UNKNOWN, Record
from iobench.report import html, storage_words
from iobench.report.csv import trials_frame
from tests.build import report as fixture
from tests.unit.analysis.test_many_files import LABEL, noted, pipeline

MB = 1_000_000
#: Bytes that a trial of the fixture reads.
NEEDED = fixture.SAMPLES * fixture.SIZE


def sweep(kept: Sequence[bool], unit: int = 8 * MB) -> Dict[str, Any]:
    """Return the note of a sweep: which sets the servers kept."""
    sets = [
        {"bytes": n, "first_s": n / 100e6, "again_s": n / (800e6 if there else 100e6)}
        for n, there in ((unit << i, there) for i, there in enumerate(kept))
    ]
    return {"sets": sets, "processes": 4}


def labels(plan: Plan, records: List[Record], stage: str = "read") -> List[str]:
    frame = trials_frame(plan, records)
    found = frame[(frame.stage == stage) & (frame.cache == "cold") & (frame.status == "VALID")]
    assert len(found)
    return sorted(set(found.beyond))


def touched(records: Sequence[Record]) -> List[Record]:
    """Return the records as if cold trials had read copies first."""
    return [
        dataclasses.replace(r, cache=dataclasses.replace(r.cache, beyond=FIRST_TOUCH))
        if r.trial.cache == "cold" else r
        for r in records
    ]  # fmt: skip


def test_nothing_is_known_where_nothing_was_done() -> None:
    plan, records = fixture.suite()
    assert labels(plan, records) == [UNKNOWN]
    found = analyse(plan, records)
    assert not [note for note in found.notes if note.startswith("servers' caches")]
    assert {case.servers_cache for case in found.pipelines} == {None}


def test_a_first_touch_is_named() -> None:
    plan, records = fixture.suite()
    records = touched(records)
    assert labels(plan, records) == [FIRST_TOUCH]
    found = analyse(plan, records)
    (note,) = [note for note in found.notes if note.startswith("servers' caches")]
    assert note.endswith(" first touch")
    page = html.render(plan, records, found)
    assert 'data-h="beyond">first touch</td>' in page


@pytest.mark.parametrize(
    ("stated", "first", "label"),
    [
        (NEEDED // 5, False, LARGER),
        (NEEDED // 4, False, SMALLER),
        (NEEDED // 5, True, f"{FIRST_TOUCH}, {LARGER}"),
        (NEEDED // 4, True, FIRST_TOUCH),
    ],
)
def test_data_are_held_against_the_stated_cache(stated: int, first: bool, label: str) -> None:
    plan, records = fixture.suite()
    plan = dataclasses.replace(plan, servers_cache_bytes=stated)
    assert labels(plan, touched(records) if first else records) == [label]


def swept(kept: Sequence[bool], unit: int = 8 * MB) -> Tuple[Plan, List[Record]]:
    return noted("reread", sweep(kept, unit))


def test_the_knee_is_in_report_and_analysis() -> None:
    plan, records = swept((True, True, False, False))
    found = pipeline(plan, records)
    assert found.servers_cache is not None
    assert (found.servers_cache.low, found.servers_cache.high) == (16 * MB, 56 * MB)
    assert [s.bytes for s in found.servers_cache.sets] == [8 * MB, 16 * MB, 32 * MB, 64 * MB]
    assert found.servers_cache.sets[0].again_per_s.value == pytest.approx(800e6)
    assert "holds between 16 and 56 MB" in storage_words.servers_cache(found)
    document = analyse(plan, records)
    page = html.render(plan, records, document)
    assert '<table class="reread"' in page
    assert "holds between 16 and 56 MB" in page
    others = [c for c in document.pipelines if c.case != LABEL]
    assert {c.servers_cache for c in others} == {None}


@pytest.mark.parametrize(
    ("kept", "words", "label"),
    [
        ((True, True, False), "holds between 8 and 28 MB", LARGER),
        ((True, True, True), "no knee up to 16 MB: second passes come from", SMALLER),
        ((False, False, False), "not clearly faster at any size up to 16 MB", UNKNOWN),
    ],
)
def test_data_are_held_against_the_measured_cache(
    kept: Sequence[bool], words: str, label: str
) -> None:
    """Of all cases on the mount, whichever of them swept it: those of the fixture need 141 MB."""
    plan, records = swept(kept, 4 * MB)
    found = pipeline(plan, records).servers_cache
    assert found is not None
    assert words in found.words
    assert labels(plan, records) == [label]


def test_a_stated_size_that_is_too_small_is_said_to_be() -> None:
    plan, records = swept((True, True, True))
    plan = dataclasses.replace(plan, servers_cache_bytes=20 * MB)
    notes = analyse(plan, records).notes
    assert [n for n in notes if n.startswith("servers_cache = 20 MB is too small: 32 MB came")]
    assert labels(plan, records) == [SMALLER]


def test_requests_that_read_again_are_not_held_against_it() -> None:
    plan, records = noted("requests", {})
    plan = dataclasses.replace(plan, servers_cache_bytes=1)
    assert labels(plan, records, "requests") == [UNKNOWN]
