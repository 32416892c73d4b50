"""Copying one batch to a device, and what the analysis makes of it."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iobench.analysis.case_results import CaseResult
from iobench.analysis.results import to_json
from iobench.analysis.suite import analyse
from iobench.core.cases import Batch, Trial
from iobench.report import trainer_words
from iobench.worker.stages import h2d
from tests.build import scaling as fixture
from tests.build.scaling import case_of, rank_of, record_of, steps_of
from tests.capabilities import need

BATCH = Batch(np.zeros((4, 3, 32, 32), np.float32), np.zeros(4, np.int64), np.arange(4), 40)
COPY_S, PIXELS = 0.012, 4 * 3 * 32 * 32


def test_a_batch_is_copied_again_and_again() -> None:
    """By the real trainer, from memory to memory: the same call goes to a GPU where one is."""
    need("torch")
    from iobench.backends.trainers.torch import TorchTrainer

    loader = SimpleNamespace(batches=lambda: iter([BATCH]), close=lambda: None)
    job: Any = SimpleNamespace(
        trainer=lambda: TorchTrainer(batch=4, net="resnet44cifar"),
        loader=lambda **_: loader,
        request=SimpleNamespace(ids=np.arange(4), batch=4),
        task=SimpleNamespace(seconds=0.05),
        driver=SimpleNamespace(world_size=1),
    )
    measured, _, extra = h2d.BACKEND.run(job)
    assert 3 <= len(measured.steps.done_s) <= 2000
    assert measured.steps.warmup == 1
    assert extra["notes"]["h2d"] == {"bytes": 4 * PIXELS, "pinned": False}
    assert "last_loss" not in extra["notes"]["trainer"], "it has trained"


@pytest.mark.parametrize("pinned", [True, False])
def test_what_a_copy_takes_of_a_step(pinned: bool) -> None:
    plan, records = fixture.suite([case_of(1)])
    case = plan.cases[0]
    note = {"h2d": {"bytes": 48_000_000, "pinned": pinned}}
    trials = [Trial(f"h{i}", case, "h2d", "-", block=i) for i in (1, 2, 3)]
    copied = [
        record_of(trial, [rank_of(case, 0, steps_of(0.0, COPY_S), notes=note)]) for trial in trials
    ]
    plan = dataclasses.replace(plan, trials=(*plan.trials, *trials))
    found: CaseResult = analyse(plan, [*records, *copied]).pipelines[0]
    assert found.copy_s is not None
    assert found.copy_s.seconds.value == pytest.approx(COPY_S)
    assert found.copy_s.bytes_per_s == pytest.approx(48e6 / COPY_S)
    assert found.copy_s.share == pytest.approx(COPY_S / fixture.PARTS.compute_s)
    text = trainer_words.copies(found)
    assert text.startswith("copying a batch of 48.0 MB to the GPU takes 12.00 ms")
    assert f"4.00 GB/s from {'pinned' if pinned else 'pageable'} memory" in text
    assert to_json(found)["copy_s"]["pinned"] is pinned
    assert trainer_words.copies(dataclasses.replace(found, copy_s=None)) == ""
