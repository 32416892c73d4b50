"""The roofs of the trainer: FLOP of a step, the machine's FLOP/s and memory bandwidth."""

from __future__ import annotations

from iobench.core.records import NO_STEPS
from iobench.core.stages import Measured, Outcome, Stage
from iobench.host import io_counters
from iobench.worker.rank import RankRun
from iobench.worker.stages._replay import resident


def _roofs(job: RankRun) -> Outcome:
    """Count the FLOP of one step; multiply matrices and sweep arrays with the trainer's threads."""
    trainer = job.trainer()
    batch = resident(job, trainer.device)
    before = io_counters.snapshot()
    notes = {"roof": dict(trainer.flop(batch)), "trainer": dict(trainer.describe())}
    io = io_counters.difference(before, io_counters.snapshot())
    trainer.close()
    return Measured(NO_STEPS, [batch.ids]), io, {"notes": notes}


BACKEND = Stage(
    _roofs,
    "FLOP of a step, FLOP/s of a GEMM and bytes/s of a triad: the trainer's roofline",
    caches=("-",),
    always=True,
    reads=False,
    trained=True,
    one_rank=True,
    rung=55,
    needs="flop",
    named=True,
)
