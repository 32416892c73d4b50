"""What the stages share that repeat one batch: compute, alone, h2d."""

from __future__ import annotations

from typing import Any

from iobench.core import clock
from iobench.core.cases import Batch
from iobench.core.stages import Outcome
from iobench.host import io_counters
from iobench.worker import loop
from iobench.worker.rank import RankRun

MAX_REPLAYS = 2000  # a trainer that costs nothing would be replayed millions of times


def replay(job: RankRun) -> Outcome:
    """Replay one resident batch; no byte is read inside the loop."""
    opened = clock.clock()
    trainer = job.trainer()
    batch = None if trainer.feeds_itself else resident(job, trainer.device)
    job.open_s = clock.clock() - opened
    begin_at = job.meet()
    before = io_counters.snapshot()
    clock.wait_until(begin_at)
    if batch is None:
        measured = trainer.replay(job.request, seconds=job.task.seconds)
    else:
        measured = loop.measure(repeated(batch, job), trainer, warmup=1)
    io = io_counters.difference(before, io_counters.snapshot())
    notes = {
        "trainer": dict(trainer.describe()),
        "replayed_samples": len(measured.ids[0]),
        "buckets": [dict(b) for b in getattr(trainer, "buckets", list)()],
    }
    trainer.close()
    return measured, io, {"notes": notes}


def resident(job: RankRun, device: str) -> Batch:
    """Return the first batch, its loader closed."""
    loader = job.loader(ids=job.request.ids[: job.request.batch], device=device, workers=1)
    batch = next(iter(loader.batches()))
    loader.close()
    return batch


def repeated(batch: Batch, job: RankRun) -> Any:
    """Yield the batch for so many steps or seconds; ranks that wait for each other: all alike."""
    start, task = clock.clock(), job.task
    last = MAX_REPLAYS
    for step in range(last):
        if step > 2 and task.seconds and job.driver.world_size == 1:
            if clock.clock() - start > task.seconds:
                return
        elif step == 3 and task.seconds:  # several ranks: rank 0 says how many fit
            last = min(last, job.driver.agree(3 + int(task.seconds * 3 / (clock.clock() - start))))
        if step >= last:
            return
        yield batch
