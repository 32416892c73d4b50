"""A trial that may have measured its loader's queue is named: by its counts and its whole loop."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Sequence

import pytest

from iobench.analysis.cases import describe
from iobench.analysis.evidence import Evidence
from iobench.analysis.remarks import FASTER, QUEUES, queue_remark, remarks
from iobench.core.cases import STEADY, Case, Trial
from iobench.core.records import VALID, CacheProof, RankResult, Record, Steps
from tests.build import report as fixture

BATCH = 32


def record(
    waits: Sequence[float], *, queue: int, warmup: int, cache: str = "warm", stage: str = "train",
    step_s: float = 0.1,
) -> Record:  # fmt: skip
    """Return a trial whose steps waited so long and then took ``step_s`` each."""
    done = list(itertools.accumulate(wait + step_s for wait in waits))
    asked = [0.0, *done][: len(done)]
    ready = [t + wait for t, wait in zip(asked, waits, strict=True)]
    steps = Steps(asked, ready, done, [BATCH] * len(done), [1] * len(done), warmup=warmup)
    case = Case(label="torch:jpeg", batch=BATCH, world_size=1)
    rank = RankResult(0, 1, "h", 1, steps, notes={"queue_batches": queue})
    trial = Trial(f"{stage} {cache} {len(done)}", case, stage, cache)
    return Record(trial, 1, VALID, (), "", 1.0, CacheProof(), (rank,))


def test_a_queue_deeper_than_the_warm_up_is_named() -> None:
    said = queue_remark(record([0.1] * 20, queue=10, warmup=5))
    assert "15 batches were measured after a warm-up of 5, with a queue of 10" in said
    assert f"take {11 * 10 * BATCH:,} samples or more" in said
    assert not queue_remark(record([0.1] * 40, queue=10, warmup=10))


def test_a_short_window_is_named_where_its_first_batches_had_been_made() -> None:
    """Sixteen batches against a queue of four: the loop's own rate from an empty queue judges."""
    even, burst = [0.1] * 20, [2.0, 0.0, 0.0, 0.0, *[0.0] * 16]
    assert not queue_remark(record(even, queue=4, warmup=4))
    assert "16 batches" in queue_remark(record(burst, queue=4, warmup=4, step_s=0.05))
    many = [2.0] * 4 + [0.0] * 4 * QUEUES
    assert not queue_remark(record(many, queue=4, warmup=4, step_s=0.05))


@pytest.mark.parametrize(("over", "named"), [(0.98, False), (1.02, True)])
def test_a_window_much_faster_than_its_whole_loop_is_named(over: float, named: bool) -> None:
    """Twenty batches that arrive together, and are trained on for 0.1 s each."""
    waits = [FASTER * over * 20 * 0.1, *[0.0] * 19]
    assert bool(queue_remark(record(waits, queue=4, warmup=4))) == named


def test_nothing_is_said_of_a_loop_that_is_its_whole_epoch_or_has_no_queue() -> None:
    for made in (
        record([0.1] * 20, queue=10, warmup=5, cache="cold"),
        record([0.1] * 60, queue=10, warmup=30, cache=STEADY),
        record([0.1] * 20, queue=0, warmup=0),
        record([], queue=10, warmup=0),
    ):
        assert queue_remark(made) == ""


@pytest.mark.parametrize(
    ("wait_s", "made_s", "said"),
    [
        (0.0125, 0.0, ["taking a batch that was there took 12.5 ms, 11% of a step"]),
        (0.0015, 0.0, []),  # the bound allows for so much anyway
        (0.0125, 1e9, []),  # none was there
    ],
)
def test_batches_that_were_there_and_took_long_are_named(
    wait_s: float, made_s: float, said: list[str]
) -> None:
    one = record([wait_s] * 60, queue=0, warmup=4)
    steps = dataclasses.replace(one.ranks[0].steps, made_s=[made_s] * 60)
    one = dataclasses.replace(one, ranks=(dataclasses.replace(one.ranks[0], steps=steps),))
    found = Evidence(fixture.suite()[0], {one.trial.id: one})
    lines = remarks(found, one.trial.case)
    assert [line.removeprefix("train: ").partition(" (")[0] for line in lines] == said
    taken = describe(found, one.trial.case).step_wait_s["warm"].taken
    assert taken == pytest.approx(wait_s if made_s == 0 else 0)


def test_stages_of_equal_words_are_named_together() -> None:
    short = [record([0.1] * 20, queue=10, warmup=5, stage=stage) for stage in ("load", "train")]
    found = Evidence(fixture.suite()[0], {made.trial.id: made for made in short})
    (said,) = remarks(found, short[0].trial.case)
    assert said.startswith("load, train: 15 batches were measured")
