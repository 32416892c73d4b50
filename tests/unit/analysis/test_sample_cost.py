"""What a sample cost each arm: counted in the trials compared, told of a difference alone."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import pytest

from iobench.analysis import sample_cost
from iobench.analysis.contrast_results import ContrastResult
from iobench.analysis.suite import analyse
from iobench.core.cases import Trial
from iobench.core.records import CacheProof, IoCounters, Record
from iobench.report import contrast_words
from tests.build import pairs as fixture

BARE, DOCKER = fixture.cases("bare", "docker")
CPU = {BARE.label: 0.032, DOCKER.label: 0.064}  # seconds of the 16 samples of a trial


def record(trial: Trial, load: float, storage: Optional[int] = 16 * 2048) -> Record:
    seconds = 1e-3 * (load if trial.case.label == DOCKER.label else 1.0)
    made = fixture.record(trial, seconds * (1 + 1e-4 * trial.block))
    cpu = CPU[trial.case.label]
    io = IoCounters(
        rchar=16 * 4096 * (1 + (trial.block == 3)), cpu_user_s=cpu, cpu_sys_s=cpu / 4, wall_s=1.0
    )
    ranks = tuple(dataclasses.replace(rank, io=io) for rank in made.ranks)
    return dataclasses.replace(made, ranks=ranks, cache=CacheProof(bytes_storage=storage))


def judged(load: float, cache: str = "cold", **changes: Any) -> ContrastResult:
    contrast = fixture.contrast(DOCKER, BARE, cache=cache, probes=0)
    plan = fixture.plan([BARE, DOCKER], [contrast])
    return analyse(plan, [record(t, load, **changes) for t in plan.trials]).contrasts[0]


def test_counts_are_medians_over_trials_of_a_sample() -> None:
    found = judged(1.2).work
    assert found["arm"].cpu_s == pytest.approx(0.064 * 1.25 / 16)
    assert found["arm"].system_s == pytest.approx(0.016 / 16)
    assert found["base"].cpu_s == pytest.approx(0.032 * 1.25 / 16)
    assert found["arm"].read_bytes == 4096, "one block with twice the bytes moves no median"
    assert found["arm"].storage_bytes == 2048


def test_a_difference_is_told_with_them_without_any_probe() -> None:
    found = judged(1.2)
    assert found.outcome.verdict == "SLOWER"
    said = contrast_words.work(found)
    assert said == (
        "a sample: CPU 5.00 ms against 2.50 (kernel 1.00 ms against 0.500), 2 KiB against 2 "
        "from storage, 4 KiB against 4 by read()"
    )
    assert said in contrast_words.sentence(found)
    assert "calls n/a" in contrast_words.sentence(found), "calls are counted of every difference"
    assert "attributed" not in contrast_words.sentence(found)


def test_storage_is_left_out_where_it_says_nothing() -> None:
    assert "storage" not in contrast_words.work(judged(1.2, cache="warm"))
    assert "storage" not in contrast_words.work(judged(1.2, storage=None))


def test_no_difference_is_told_nothing() -> None:
    found = judged(1.0)
    assert found.outcome.verdict == "EQUIVALENT"
    assert contrast_words.work(found) == ""


def test_what_could_not_be_counted_is_none() -> None:
    assert set(vars(sample_cost.per_sample([])).values()) == {None}
