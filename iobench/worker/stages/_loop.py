"""What the stages share that run over an epoch: read, decode, load, train."""

from __future__ import annotations

from typing import Any, Dict, List

from iobench.core import clock
from iobench.core.cases import STEADY, STEADY_EPOCHS
from iobench.core.stages import Outcome
from iobench.host import io_counters
from iobench.worker import loop, sample_times
from iobench.worker.rank import RankRun


def epoch(job: RankRun) -> Outcome:
    """Run the measured loop over one epoch of the rank's samples."""
    opened = clock.clock()
    trainer = job.trainer()
    # alone, too, the loader hands its batches over as it does in training: pinned for a GPU
    for_gpu = job.request.stage == "load" and job.task.trial.case.trains_on_gpu
    loader = job.loader(device="cuda" if for_gpu else trainer.device)
    job.open_s = clock.clock() - opened
    steps = len(job.request.ids) // job.request.batch
    warmup = 0
    if not getattr(loader, "in_pieces", False):
        warmup = loop.warmup_steps(
            queue_batches=loader.queue_batches, workers=job.request.workers, steps=steps
        )
    if job.task.trial.cache == STEADY:  # its first epoch, and what was asked for meanwhile
        warmup = steps // STEADY_EPOCHS + (loader.queue_batches or 0)
    alive: List[int] = getattr(loader, "processes", list)()
    before = io_counters.snapshot(alive)
    walked = clock.clock()
    getattr(loader, "walk", lambda: None)()  # most need not know all samples before the first
    job.walk_s = clock.clock() - walked
    begin_at = job.meet()
    begun = io_counters.snapshot(alive)
    clock.wait_until(begin_at)
    if trainer.feeds_itself:
        measured = trainer.feed(loader, job.request, warmup=warmup)
    else:
        batches, least = loader.batches(), job.task.trial.least
        if least and job.driver.world_size == 1:  # ranks that exchange gradients end together
            batches = loop.worth_going_on(batches, least=least, warmup=warmup, steps=steps)
        measured = loop.measure(batches, trainer, warmup=warmup)
    ended = io_counters.snapshot(alive)
    job.rest()
    loader.close()
    io = io_counters.since(before, begun, ended, io_counters.snapshot())
    if job.far:
        io = job.far.added_to(io)
    notes = {
        "queue_batches": loader.queue_batches,
        "trainer": dict(trainer.describe()),
        "loader": dict(getattr(loader, "describe", dict)()),
        **({"ended_early": len(measured.ids) < steps} if job.task.trial.least else {}),
        **(job.far.notes() if job.far else {}),
        "buckets": [dict(b) for b in getattr(trainer, "buckets", list)()],
    }
    trainer.close()
    extra: Dict[str, Any] = {"notes": notes if job.stage.trained else {**notes, "trainer": {}}}
    if not job.task.trial.contrast:  # one that takes turns is stopped within its samples
        extra["sample_times"] = sample_times.recent(measured)
    return measured, io, extra
