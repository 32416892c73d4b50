"""The one clock and the one measured loop."""

from __future__ import annotations

from array import array
from typing import Any, Callable, Iterator, List

from iobench.core.cases import Batch
from iobench.core.clock import clock
from iobench.core.protocols import Trainer
from iobench.core.records import Steps
from iobench.core.stages import Measured


def measure(
    batches: Iterator[Batch], trainer: Trainer, *, warmup: int, clock: Callable[[], float] = clock
) -> Measured:
    """Run every batch through the trainer and record three clock readings a step.

    Nothing is logged, printed, allocated by the step or written in here; the cost is two
    ``perf_counter`` calls and six appends a step.  ``warmup`` steps are recorded and marked.
    """
    request, ready, done = array("d"), array("d"), array("d")
    ids: List[Any] = []
    marks: List[Any] = []
    nbytes = array("q")
    step = trainer.step
    start = now = clock()
    for batch in batches:
        request.append(now)
        ready.append(clock())
        step(batch)
        ids.append(batch.ids)
        marks.append(batch.marks)
        nbytes.append(batch.nbytes)
        now = clock()
        done.append(now)
    trainer.sync()
    if done:
        done[-1] = clock()
    timed = bool(marks) and all(each is not None and len(each) for each in marks)
    return Measured(
        Steps(
            request_s=[t - start for t in request],
            ready_s=[t - start for t in ready],
            done_s=[t - start for t in done],
            samples=[len(i) for i in ids],
            bytes=list(nbytes),
            begun_s=[float(each.min()) - start for each in marks] if timed else (),
            made_s=[float(each.max()) - start for each in marks] if timed else (),
            warmup=warmup,
            **getattr(trainer, "exchanges", dict)(),
        ),
        ids,
        start,
        marks if timed else (),
    )


def worth_going_on(
    batches: Iterator[Batch], *, least: float, warmup: int, steps: int,
    clock: Callable[[], float] = clock,
) -> Iterator[Batch]:  # fmt: skip
    """Yield batches until what was trained since the warm-up is slower than ``least`` samples/s.

    Not before a quarter of the steps that count: so long a run is not judged.
    """
    first = warmup + max(1, (steps - warmup) // 4)
    begun = clock()
    samples = 0
    for step, batch in enumerate(batches):
        if step == warmup:
            begun = clock()
        elif step > first and samples < least * (clock() - begun):
            return
        yield batch
        if step >= warmup:
            samples += len(batch.ids)


def warmup_steps(*, queue_batches: int, workers: int, steps: int) -> int:
    """Return how many steps to discard: the queue's depth, rounded up so that the rest is whole
    rounds of the workers (a round-robin loader delivers in bursts of ``workers`` batches).

    A queue that starts empty and is discarded once is near empty for the rest where the loader
    is the slower side and full where the trainer is, so what crosses the window's edges cancels.
    At most a quarter of the steps is given up.
    """
    whole = max(workers, 1)
    if steps < 4 * whole:
        return min(1, steps - 1)
    k = max(queue_batches, 1)
    k += (steps - k) % whole
    limit = steps // 4
    return k if k <= limit else limit - (limit - steps) % whole
