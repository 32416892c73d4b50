"""Nobody trains: a step does nothing."""

from __future__ import annotations

from typing import Mapping

from iobench.core.cases import Batch, Scalar
from iobench.core.members import TrainerBackend
from iobench.core.protocols import Trainer


class NullTrainer(Trainer):
    """Takes batches and does nothing with them."""

    def __init__(self, *, batch: int) -> None:
        self._batch = batch

    def step(self, batch: Batch) -> None:
        """Do nothing."""

    def describe(self) -> Mapping[str, Scalar]:
        """Return that it does nothing."""
        return {"kind": "null", "batch": self._batch, "step_s": 0.0}


BACKEND = TrainerBackend(NullTrainer, "nobody trains", ranks=True)
