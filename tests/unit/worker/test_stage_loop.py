"""The stages of a worker: what is measured, and what is start-up."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iobench.backends.trainers.null import NullTrainer
from iobench.core.cases import Batch, Case
from iobench.worker.stages import _loop

WALK_S = 1000.0
#: The process of a worker that is up before the loop; no such id can be.
WORKER = 2**22 + 1


class Walker:
    """A loader that walks through its data for a long time by the stages' clock."""

    queue_batches = 1

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock

    def walk(self) -> None:
        self._clock[0] += WALK_S

    def batches(self) -> Iterator[Batch]:
        for k in range(8):
            yield Batch(None, np.zeros(1, int), np.array([k]), 1)

    def processes(self) -> list[int]:
        return [WORKER]

    def close(self) -> None:
        pass


ON_CPU = Case()


def rank(clock: list[float], cache: str, case: Case = ON_CPU, stage: str = "load") -> Any:
    return SimpleNamespace(
        stage=SimpleNamespace(trained=False),
        task=SimpleNamespace(trial=SimpleNamespace(cache=cache, contrast="", least=0, case=case)),
        request=SimpleNamespace(ids=np.arange(8), batch=1, workers=1, stage=stage),
        trainer=lambda: NullTrainer(batch=1),
        loader=lambda **_: Walker(clock),
        meet=lambda: 0.0,
        rest=lambda: None,
        far=None,
    )


def test_the_epoch_that_fills_the_memory_is_not_measured() -> None:
    measured, _, _ = _loop.epoch(rank([0.0], "steady"))
    assert measured.steps.warmup == 8 // 3 + Walker.queue_batches
    assert len(measured.steps.done_s) == 8


@pytest.mark.parametrize(
    ("device", "stage", "expected"),
    [("cuda", "load", "cuda"), ("cuda", "read", "cpu"), ("cpu", "load", "cpu")],
)
def test_a_loader_alone_hands_over_as_in_training(device: str, stage: str, expected: str) -> None:
    job = rank([0.0], "warm", Case(trainer="torch", trainer_options={"device": device}), stage)
    asked: list[str] = []
    job.loader = lambda device: asked.append(device) or Walker([0.0])
    _loop.epoch(job)
    assert asked == [expected]


def test_a_walk_is_start_up_and_no_part_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(_loop.clock, "clock", lambda: clock[0])
    job = rank(clock, "warm")
    asked: list[list[int]] = []
    count = _loop.io_counters.snapshot
    monkeypatch.setattr(
        _loop.io_counters, "snapshot", lambda alive=(): asked.append(list(alive)) or count(alive)
    )
    measured, _, extra = _loop.epoch(job)
    assert extra["sample_times"] == {}  # the loader keeps no time of them
    # its start is counted in neither span, its end in the bytes alone
    assert asked == [[WORKER], [WORKER], [WORKER], []]
    assert job.walk_s == WALK_S
    assert job.open_s == 0.0
    assert len(measured.steps.done_s) == 8
    assert measured.steps.done_s[-1] < WALK_S
