"""Times of single samples, and the cost of delivering batches in order, from stored records."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List

import pytest

from iobench.analysis.suite import analyse
from iobench.core.cases import Plan
from iobench.core.records import Record, Steps
from iobench.equations import delivery
from iobench.report import words
from tests.build import report as fixture

STEP, FAST, SLOW = 0.05, 0.04, 0.40
WORKERS, AHEAD = fixture.WORKERS, fixture.WORKERS * fixture.PREFETCH
CASE = "torch:lmdb"


def steps(make: List[float]) -> Steps:
    """Return the readings of a loop whose batches take so long, worker by worker."""
    free, begun, made, request, ready, done = [0.0] * WORKERS, [], [], [0.0], [], []
    for k, seconds in enumerate(make):
        asked = ready[k - AHEAD] if k >= AHEAD else 0.0
        begun.append(max(free[k % WORKERS], asked))
        free[k % WORKERS] = begun[-1] + seconds
        made.append(free[k % WORKERS])
        ready.append(max(request[-1], made[-1]))
        done.append(ready[-1] + STEP)
        request.append(done[-1])
    count = [fixture.BATCH] * len(make)
    return Steps(request[:-1], ready, done, count, count, 4, begun_s=begun, made_s=made)


def with_steps(suite: tuple[Plan, List[Record]], **fields: Any) -> Dict[str, Any]:
    """Return the case's result where its cold training has these readings, slow every eighth."""
    make = [SLOW if k % 8 == 5 else FAST for k in range(40)]
    times = {"id": [7, 8, 9], "read_s": [0.01, 0.02, 0.03], "decode_s": [0.1, 0.2, 0.1]}

    def changed(record: Record) -> Record:
        if (record.trial.stage, record.trial.cache) != ("train", "cold") or not record.ranks:
            return record
        rank = dataclasses.replace(
            record.ranks[0], **{"steps": steps(make), "sample_times": times, **fields}
        )
        return dataclasses.replace(record, ranks=(rank,))

    result = analyse(suite[0], [changed(record) for record in suite[1]])
    return {case.case: case for case in result.pipelines}


@pytest.fixture(scope="module")
def suite() -> tuple[Plan, List[Record]]:
    return fixture.suite()


def test_the_cost_of_the_order_is_that_of_the_model(suite: tuple[Plan, List[Record]]) -> None:
    found = with_steps(suite)[CASE].head_of_line["cold"]
    make = [SLOW if k % 8 == 5 else FAST for k in range(40)]
    batches = delivery.Batches(make, [0.0] * 40, [STEP] * 40)
    ordered = delivery.in_order(batches, WORKERS, AHEAD)
    free = delivery.as_made(batches, WORKERS, AHEAD)
    assert ordered > 1.2 * free
    assert found.gain.value == pytest.approx(ordered / free)
    assert found.loss_s.value == pytest.approx((ordered - free) / (40 * fixture.BATCH))
    assert found.held_s.value > 0.5 * found.loss_s.value


def test_times_of_samples_keep_their_tail_and_name_the_slowest(
    suite: tuple[Plan, List[Record]],
) -> None:
    times = with_steps(suite)[CASE].sample_s["cold"]
    assert times.samples == 3 * fixture.REPEATS
    assert times.effective == pytest.approx(times.samples * 0.46**2 / 3 / 0.0774)
    assert list(times.parts) == ["read", "decode"]
    assert times.parts["read"].p50 == 0.02
    assert (times.all.p50, times.all.max) == (pytest.approx(0.13), pytest.approx(0.22))
    assert [each["id"] for each in times.slowest] == [8, 9, 7]
    assert words.slowest(times).startswith("8 (220.00 ms), 9 (130.00 ms)")


def test_a_loader_without_times_has_a_reason(suite: tuple[Plan, List[Record]]) -> None:
    cases = with_steps(suite, sample_times={}, steps=fixture.run_queue(FAST, STEP))
    assert cases[CASE].sample_s == {}
    assert "hold no time of single samples" in cases[CASE].head_of_line["cold"].reason
    reason = cases["dali:jpeg"].head_of_line["cold"].reason
    assert reason == "how loader 'dali' deals out batches is not modelled"
