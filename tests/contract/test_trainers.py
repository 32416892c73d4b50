"""What every trainer promises: a new file in the folder is tested by being there."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

from iobench.core import registry
from iobench.core.cases import Batch
from iobench.core.members import TrainerBackend

#: Options that make a member quick to test; a member that is not named takes none.
QUICK = {
    "torch": {"net": "resnet44cifar"},
    "emulated": {"step_s": 0.001},
    "caffe": {"net": "small"},
    "caffe_train": {"net": "small"},
}
#: Input that a quick member takes.
SHAPE = {"caffe": (3, 224, 224)}

members = pytest.mark.parametrize("name", registry.names("trainers"))


def trainer_of(name: str) -> Any:
    reason = registry.unavailable("trainers", name)
    if reason or (name == "caffe_train" and not shutil.which("caffe")):
        pytest.skip(reason or "no program caffe on PATH")
    return registry.load("trainers", name).make(batch=4, **QUICK.get(name, {}))


@members
def test_it_is_a_trainer_backend(name: str) -> None:
    backend = registry.load("trainers", name)
    assert isinstance(backend, TrainerBackend)
    assert backend.summary
    assert backend.step_s(4, QUICK.get(name, {})) >= 0


@members
def test_it_takes_batches_and_describes_itself(name: str) -> None:
    trainer = trainer_of(name)
    assert trainer.device in ("cpu", "cuda")
    assert isinstance(trainer.feeds_itself, bool)
    for _ in range(0 if trainer.feeds_itself else 2):
        data = np.zeros((4, *SHAPE.get(name, (3, 32, 32))), np.float32)
        trainer.step(Batch(data, np.arange(4), np.arange(4), 4))
    trainer.sync()
    facts = trainer.describe()
    assert facts["kind"]
    assert facts["batch"] == 4
    assert all(isinstance(v, (str, int, float, bool)) or v is None for v in facts.values())
    trainer.close()
    trainer.close()


@members
def test_unknown_options_are_refused(name: str) -> None:
    if registry.unavailable("trainers", name):
        pytest.skip(registry.unavailable("trainers", name))
    with pytest.raises(TypeError):
        registry.load("trainers", name).make(batch=4, no_such_option=1)
