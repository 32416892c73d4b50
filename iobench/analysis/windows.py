"""The one clock and the one measured loop."""

from __future__ import annotations

from array import array
from time import perf_counter, sleep
from typing import Any, Callable, Iterator, List, NamedTuple

from iobench.model import Batch, Steps
from iobench.protocols import Trainer

#: Monotonic seconds.  Nothing else in iobench reads a clock.
clock = perf_counter


def delay(seconds: float, *, spin_s: float = 200e-6) -> None:
    """Return after exactly ``seconds``: sleep to an absolute deadline, spin the last ``spin_s``.

    A timer alone wakes 0.05 to 0.1 ms late.
    """
    deadline = clock() + seconds
    if seconds > spin_s:
        sleep(seconds - spin_s)
    while clock() < deadline:
        pass


class Measured(NamedTuple):
    """What the loop saw: clock readings, and the id array of every batch (not copied).

    ``began_s``: the clock when it began.
    """

    steps: Steps
    ids: List[Any]
    began_s: float = 0.0


def measure(
    batches: Iterator[Batch], trainer: Trainer, *, warmup: int, clock: Callable[[], float] = clock
) -> Measured:
    """Run every batch through the trainer and record three clock readings a step.

    Nothing is logged, printed, allocated by the step or written in here; the cost is two
    ``perf_counter`` calls and five appends a step.  ``warmup`` steps are recorded and marked.
    """
    request, ready, done = array("d"), array("d"), array("d")
    ids: List[Any] = []
    nbytes = array("q")
    step = trainer.step
    start = now = clock()
    for batch in batches:
        request.append(now)
        ready.append(clock())
        step(batch)
        ids.append(batch.ids)
        nbytes.append(batch.nbytes)
        now = clock()
        done.append(now)
    trainer.sync()
    if done:
        done[-1] = clock()
    return Measured(
        Steps(
            request_s=[t - start for t in request],
            ready_s=[t - start for t in ready],
            done_s=[t - start for t in done],
            samples=[len(i) for i in ids],
            bytes=list(nbytes),
            warmup=warmup,
        ),
        ids,
        start,
    )


class Window(NamedTuple):
    """One rank's measured window: everything after the warm-up, same steps in every figure.

    ``wall_s`` runs from the end of the last warm-up step to the end of the last step, so it
    starts long after the queue was empty and holds exactly ``samples`` samples of work.
    """

    steps: int
    samples: int
    bytes: int
    wall_s: float
    wait_s: float
    compute_s: float

    @property
    def seconds_per_sample(self) -> float:
        """Seconds of wall time a sample."""
        return self.wall_s / self.samples


def window(steps: Steps) -> Window:
    """Return the measured window of ``steps``.

    Raises ValueError when no step is left after the warm-up.
    """
    k = steps.warmup
    if len(steps.done_s) <= k:
        raise ValueError(f"{len(steps.done_s)} steps, all of them warm-up")
    start = steps.done_s[k - 1] if k else 0.0
    return Window(
        steps=len(steps.done_s) - k,
        samples=sum(steps.samples[k:]),
        bytes=sum(steps.bytes[k:]),
        wall_s=steps.done_s[-1] - start,
        wait_s=sum(b - a for a, b in zip(steps.request_s[k:], steps.ready_s[k:])),
        compute_s=sum(c - b for b, c in zip(steps.ready_s[k:], steps.done_s[k:])),
    )


def epoch(steps: Steps) -> Window:
    """Return the whole epoch from an empty queue, as seconds of the slower side.

    For states in which every byte counts (cold): read-ahead may bring a whole shard in during the
    first steps, so no step can be left out.  With n batches,

    ``wall_s = max(arrival of the last batch waited for, last step's end - first arrival)``.

    Where the loader is the slower side the first term holds n batches of its work and nothing
    else (workers in step deliver bursts: what comes with a batch waited for was there as well);
    where the trainer is, the second holds n steps.  Either way the once-an-epoch latency of the
    other side is left out.  A batch was waited for when its wait is at least half the mean wait or
    half the mean step, the shorter one: below that it may be the hand-over of one that was there.
    Without a warm-up nothing overlaps (the loader works in the loop itself): all of it counts.

    Raises ValueError without a step.
    """
    if not steps.done_s:
        raise ValueError("no step")
    if not steps.warmup:
        return window(steps)
    compute_s = sum(c - b for b, c in zip(steps.ready_s, steps.done_s))
    waits = [b - a for a, b in zip(steps.request_s, steps.ready_s)]
    waited_for = 0.5 * min(sum(waits), compute_s) / len(waits)
    arrived = max(t for t, wait in zip(steps.ready_s, waits) if wait >= waited_for)
    wall_s = max(arrived, steps.done_s[-1] - steps.ready_s[0])
    return Window(
        steps=len(steps.done_s),
        samples=sum(steps.samples),
        bytes=sum(steps.bytes),
        wall_s=wall_s,
        wait_s=wall_s - compute_s,
        compute_s=compute_s,
    )


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
