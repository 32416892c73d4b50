"""Nobody trains: a step does nothing."""

from __future__ import annotations

from typing import Mapping

from iobench.model import Batch, Scalar
from iobench.protocols import TrainerBackend


class NullTrainer:
    """Takes batches and does nothing with them."""

    feeds_itself = False
    device = "cpu"

    def __init__(self, *, batch: int) -> None:
        self._batch = batch

    def step(self, batch: Batch) -> None:
        """Do nothing."""

    def sync(self) -> None:
        """Do nothing."""

    def describe(self) -> Mapping[str, Scalar]:
        """Return that it does nothing."""
        return {"kind": "null", "batch": self._batch, "step_s": 0.0}

    def close(self) -> None:
        """Do nothing."""


BACKEND = TrainerBackend(NullTrainer, "nobody trains", ranks=True)
