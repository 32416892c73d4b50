"""AU as MLPerf Storage counts it: from records to words, and what is too small for its rules."""

from __future__ import annotations

import dataclasses
from typing import List, Tuple

import pytest

from iobench.analysis.suite import analyse
from iobench.core.cases import Plan, Trial
from iobench.core.records import VALID, Record, Steps
from iobench.report import html, trainer_words
from tests.build import report as fixture

GIB = 1 << 30
STEP_S = 0.3


def measured(
    done: Tuple[float, ...] = (7.0, 7.4, 7.7, 8.1, 8.5), memory: int = GIB, epochs: int = 2
) -> Tuple[Plan, List[Record]]:
    """Return a suite of one workload whose epochs ended their steps at ``done``."""
    plan, records = fixture.suite()
    like = next(r for r in records if r.trial.stage == "read" and r.status == VALID)
    case = dataclasses.replace(like.trial.case, batch=7, trainer_options={"step_s": STEP_S})
    trials, found = [], []
    for block in range(1, epochs + 1):
        trial = Trial(f"{block:04d}-ladder-feed", case, "feed", "cold", block=block)
        count, start = len(done), (0.0, *done[:-1])
        steps = Steps(start, start, done, [7] * count, [7 * 110_000] * count)
        rank = dataclasses.replace(like.ranks[0], steps=steps, fingerprint={"memory_bytes": memory})
        trials.append(trial)
        found.append(dataclasses.replace(like, trial=trial, ranks=(rank,)))
    asked = {"workload": "unet3d", "au": 0.9}
    small = dataclasses.replace(
        plan, cases=(case,), trials=tuple(trials), contrasts=(), rules=(), mlperf=asked
    )
    return small, found


def test_au_floor_and_what_is_too_small_are_said() -> None:
    plan, records = measured()
    suite = analyse(plan, records)
    found = suite.pipelines[0].mlperf
    assert found is not None
    assert found.au.value == pytest.approx(4 * STEP_S / 1.5)
    assert (found.floor, found.reached, found.steps, found.epochs) == (0.9, False, 5, 2)
    assert (found.samples, found.bytes) == (35, 35 * 110_000)
    assert found.samples_per_s == pytest.approx(35 / 8.5)
    record_bytes = plan.dataset.bytes / plan.dataset.samples
    assert found.wanted_samples == max(3500, -int(-5 * GIB // record_bytes))
    assert [line.split()[0] for line in found.short] == ["5", "0.0"]
    text = trainer_words.mlperf(suite.pipelines[0])
    assert "80.0 %" in text
    assert "is below the floor of 90 %" in text
    assert "5 steps an epoch, of 500 at least" in text
    assert "5 x the hosts' memory" in text
    assert text.endswith("Not an MLPerf result")
    assert "Not an MLPerf result" in html.render(plan, records, suite)


def test_a_run_that_is_large_enough_reaches_its_floor_and_is_no_mlperf_result() -> None:
    done = tuple(1.0 + STEP_S / 0.95 * i for i in range(500))
    plan, records = measured(done, memory=50_000_000)
    found = analyse(plan, records).pipelines[0].mlperf
    assert found is not None
    assert found.reached
    assert found.short == []
    assert trainer_words.mlperf(analyse(plan, records).pipelines[0]).endswith(
        "Not an MLPerf result"
    )


def test_a_suite_that_is_no_workload_has_none() -> None:
    plan, records = measured()
    assert analyse(dataclasses.replace(plan, mlperf={}), records).pipelines[0].mlperf is None
    assert analyse(plan, []).pipelines[0].mlperf is None
