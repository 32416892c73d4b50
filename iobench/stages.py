"""The stages of a worker: what runs and is measured between ``go`` and the result."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Mapping, Tuple

from iobench import bridge, iocount, registry, timing
from iobench.dataset import samples_digest
from iobench.job import Job
from iobench.model import Batch, IoCounters, Steps
from iobench.protocols import CALLS_BEGIN, CALLS_END

EMPTY = Steps((), (), (), (), ())
#: A trainer that costs nothing would be replayed millions of times.
MAX_REPLAYS = 2000
#: Samples of a traced loop, in whole batches: one that every call of stops twice is slow.
CALLS_SAMPLES = 256
#: What the loop saw, the I/O meanwhile, and further fields of the rank's result.
Outcome = Tuple[timing.Measured, IoCounters, Dict[str, Any]]


def measure(job: Job) -> Outcome:
    """Run the stage of the job's trial."""
    return _STAGES.get(job.task.trial.stage, _ladder)(job)


def _ladder(job: Job) -> Outcome:
    """read, decode, load, train: the measured loop over one epoch of the rank's samples."""
    stage = job.task.trial.stage
    opened = timing.clock()
    trainer = job.trainer()
    loader = job.loader(device=trainer.device)
    job.open_s = timing.clock() - opened
    steps = len(job.request.ids) // job.request.batch
    warmup = (
        0
        if getattr(loader, "in_pieces", False)
        else timing.warmup_steps(
            queue_batches=loader.queue_batches, workers=job.request.workers, steps=steps
        )
    )
    alive: List[int] = getattr(loader, "processes", list)()
    before = iocount.snapshot(alive)
    walked = timing.clock()
    getattr(loader, "walk", _no_walk)()
    job.walk_s = timing.clock() - walked
    job.meet()
    begun = iocount.snapshot(alive)
    if trainer.feeds_itself:
        measured = trainer.feed(loader, job.request, warmup=warmup)
    else:
        measured = timing.measure(loader.batches(), trainer, warmup=warmup)
    ended = iocount.snapshot(alive)
    loader.close()
    io = bridge.with_far_side(iocount.since(before, begun, ended, iocount.snapshot()), loader)
    notes = {
        "queue_batches": loader.queue_batches,
        "trainer": dict(trainer.describe()),
        "loader": dict(getattr(loader, "describe", dict)()),
        **bridge.notes(loader),
    }
    trainer.close()
    return measured, io, {"notes": notes if stage == "train" else {**notes, "trainer": {}}}


def _no_walk() -> None:
    """Do nothing: most loaders need not know all samples before the first."""


def _compute(job: Job) -> Outcome:
    """compute: one resident batch, replayed; no byte is read inside the loop."""
    opened = timing.clock()
    trainer = job.trainer()
    batch = None if trainer.feeds_itself else _resident(job, trainer.device)
    job.open_s = timing.clock() - opened
    job.meet()
    before = iocount.snapshot()
    if batch is None:
        measured = trainer.replay(job.request, seconds=job.task.seconds)
    else:
        measured = timing.measure(_replay(batch, job), trainer, warmup=1)
    io = iocount.difference(before, iocount.snapshot())
    notes = {"trainer": dict(trainer.describe()), "replayed_samples": len(measured.ids[0])}
    trainer.close()
    return measured, io, {"notes": notes}


def _resident(job: Job, device: str) -> Batch:
    """Return the first batch, its loader closed."""
    loader = job.loader(ids=job.request.ids[: job.request.batch], device=device, workers=1)
    batch = next(iter(loader.batches()))
    loader.close()
    return batch


def _replay(batch: Batch, job: Job) -> Any:
    """Yield the batch for so many steps or seconds; ranks that wait for each other: all alike."""
    start, task = timing.clock(), job.task
    last = task.steps or MAX_REPLAYS
    for step in range(last):
        if step > 2 and task.seconds and job.world_size == 1:
            if timing.clock() - start > task.seconds:
                return
        elif step == 3 and task.seconds:  # several ranks: rank 0 says how many fit
            last = min(last, job.agree(3 + int(task.seconds * 3 / (timing.clock() - start))))
        if step >= last:
            return
        yield batch


def _digest(job: Job) -> Outcome:
    """digest: the untimed twin; every sample's stored bytes hashed, and held against the index."""
    import numpy as np

    loader = job.loader(stage="read", digest=True)
    ids: List[Any] = []
    labels: List[Any] = []
    digests: List[str] = []
    for batch in loader.batches():
        ids.append(np.asarray(batch.ids))
        labels.append(np.asarray(batch.labels))
        digests.extend(batch.digests or ())
    loader.close()
    measured = timing.Measured(EMPTY, ids)
    every = np.concatenate(ids).tolist()
    value = samples_digest(every, np.concatenate(labels).tolist(), digests)
    wrong = 0
    if job.task.trial.case.content == "jpeg":
        wrong = sum(job.digests[i] != d for i, d in zip(every, digests))
    return measured, IoCounters(), {"samples_digest": value, "notes": {"wrong_digests": wrong}}


def _probe(job: Job) -> Outcome:
    """probe: no workers, queue of one; where a sample's time goes, and what crossed the mount."""
    probe = registry.load("loaders", job.task.trial.case.loader).probe
    samples = job.task.steps or min(256, len(job.request.ids))
    before = iocount.snapshot()
    times = probe(job.request, samples)
    return (
        timing.Measured(EMPTY, [job.request.ids[:samples]]),
        iocount.difference(before, iocount.snapshot()),
        {"probe": {k: list(v) for k, v in times.items()}},
    )


def _calls(job: Job) -> Outcome:
    """calls: the loop of ``load`` on some whole batches, marked for the driver, which traces it."""
    import numpy as np

    batch = job.request.batch
    samples = max(batch, min(CALLS_SAMPLES, len(job.request.ids)) // batch * batch)
    loader = job.loader(ids=job.request.ids[:samples])
    os.access(CALLS_BEGIN, os.F_OK)
    ids = [np.asarray(batch.ids) for batch in loader.batches()]
    os.access(CALLS_END, os.F_OK)
    loader.close()
    return timing.Measured(EMPTY, ids), IoCounters(), {"notes": {"samples": sum(map(len, ids))}}


def _extents(job: Job) -> Outcome:
    """ceiling: the samples that fio reads; their extents were written before ``ready``."""
    return timing.Measured(EMPTY, [job.request.ids]), IoCounters(), {}


_STAGES: Mapping[str, Callable[[Job], Outcome]] = {
    "compute": _compute, "alone": _compute, "digest": _digest, "probe": _probe, "calls": _calls,
    "ceiling": _extents,
}  # fmt: skip
