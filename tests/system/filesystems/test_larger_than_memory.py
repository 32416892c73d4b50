"""Data larger than the memory that a case may use: warm is refused, cold works, later epochs find
in memory what a cache of that size gives, and nobody is killed unnoticed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Iterator

import pytest

from iobench.analysis.steady import hit_ratio
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.records import FAILED, INVALID, VALID, Record
from iobench.equations.stalls import lru_hit_ratio
from iobench.host import limits, page_cache
from iobench.run.trial import TrialSettings, run_trial
from tests.build.disks import dataset_on_disk
from tests.capabilities import need

pytestmark = pytest.mark.slow
#: 84 MB of data; an interpreter with numpy takes some 30 MB of the limit.
SAMPLES, LIMIT = 768, 80 << 20
#: Pages of other files and of the interpreter are in the group too.
SLACK = 0.04


@pytest.fixture(scope="module")
def data() -> Iterator[Dataset]:
    need("loop")
    if reason := limits.refused(Case(memory_bytes=LIMIT)):
        pytest.skip(reason)
    with dataset_on_disk(Path(__file__).parent, SAMPLES, 400 << 20) as made:
        yield made


def measured(data: Dataset, cache: str, memory_bytes: int = LIMIT, stage: str = "read") -> Record:
    case = Case(
        format="jpeg", loader="threads", trainer="null", location=data.root, batch=8, workers=1,
        memory_bytes=memory_bytes,
    )  # fmt: skip
    settings = TrialSettings(lock_pages=False)
    return run_trial(Trial("t", case, stage, cache), data, 1, settings)


def test_warm_is_refused_as_it_cannot_be(data: Dataset) -> None:
    record = measured(data, "warm")
    assert record.status == INVALID
    assert "cannot be warm in memory = 80 MiB: use fewer samples, or measure" in record.reasons[0]


def test_cold_works(data: Dataset) -> None:
    record = measured(data, "cold")
    assert (record.status, record.reasons) == (VALID, ())
    assert (record.cache.resident_after or 0) < 0.8  # it did not fit


def test_later_epochs_find_what_a_cache_of_that_size_gives(data: Dataset) -> None:
    record = measured(data, "steady")
    assert (record.status, record.reasons) == (VALID, ())
    (rank,) = record.ranks
    assert sum(rank.steps.samples) == 3 * SAMPLES
    assert rank.steps.warmup >= SAMPLES // 8
    cached, hits = record.cache.resident_after, hit_ratio(record)
    assert cached is not None
    assert hits is not None
    assert 0.1 < cached < 0.8
    assert lru_hit_ratio(cached) - SLACK <= hits <= cached + SLACK


def test_with_memory_for_all_of_it_later_epochs_read_nothing(data: Dataset) -> None:
    for _ in range(3):  # tests beside this one drop names, and files' pages go with them
        record = measured(data, "steady", 400 << 20)
        if (hit_ratio(record) or 0) > 0.98:
            break
    assert (record.status, record.reasons) == (VALID, ())
    assert hit_ratio(record) == pytest.approx(1.0, abs=0.02)


def test_who_is_killed_for_want_of_memory_is_missed(data: Dataset) -> None:
    """A limit below what the interpreter itself needs."""
    record = measured(data, "cold", limits.LEAST_MEMORY // 2)
    assert record.status == FAILED
    assert "memory" in record.reasons[0]


def test_the_effective_memory_is_the_groups(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is itself in a small group refuses for all of its cases."""
    monkeypatch.setattr(page_cache, "effective_memory_bytes", lambda: LIMIT)
    record = measured(data, "warm", 0)
    assert record.status == INVALID
    assert "of effective memory" in record.reasons[0]
    assert dataclasses.replace(record.trial, cache="steady").all_epochs == 3
