"""Copies one batch to the GPU again and again: the part of a step that hands over its data."""

from __future__ import annotations

from typing import Any, Dict

from iobench.core.cases import Batch
from iobench.core.stages import Outcome, Stage
from iobench.host import io_counters
from iobench.worker import loop
from iobench.worker.rank import RankRun
from iobench.worker.stages._replay import repeated, resident


class _Copies:
    """A trainer whose step is the copy of its batch."""

    def __init__(self, trainer: Any) -> None:
        self.step, self.sync = trainer.copy, trainer.sync


def _copy(job: RankRun) -> Outcome:
    trainer = job.trainer()
    batch = resident(job, trainer.device)
    before = io_counters.snapshot()
    copies: Any = _Copies(trainer)
    measured = loop.measure(repeated(batch, job), copies, warmup=1)
    io = io_counters.difference(before, io_counters.snapshot())
    notes = {"trainer": dict(trainer.describe()), "h2d": _facts(batch)}
    trainer.close()
    return measured, io, {"notes": notes}


def _facts(batch: Batch) -> Dict[str, Any]:
    """Return the bytes of a batch's data, and whether they lie in pinned memory."""
    pinned = getattr(batch.data, "is_pinned", bool)
    return {"bytes": int(batch.data.nbytes), "pinned": bool(pinned())}


BACKEND = Stage(
    _copy,
    "one batch in memory, copied to the GPU: what of a step hands over its data",
    caches=("-",),
    always=True,
    reads=False,
    trained=True,
    onto_device=True,
    rung=45,
    needs="copy",
    named=True,
)
