"""Ranks, their queues and one shared filesystem, simulated event by event (SimPy).

For what the closed form of ssgd cannot: steps and batches whose times vary, queues of finite
length, and readers of all ranks that share one bandwidth.  A synchronous step waits for the slowest
rank, so the mean of the slowest counts, not the slowest of the means.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Generator, Sequence
from typing import Any

from iobench.equations.ssgd import StepParts, exposed_s


@dataclasses.dataclass(frozen=True)
class SimulatedJob:
    """``ranks`` that each make batches by ``workers`` processes, at most ``prefetch`` a worker
    ahead, and compute on them together.

    ``read_bytes`` of a batch come from storage that gives ``bytes_per_s`` to all ranks together,
    one batch after the other (None: from memory).  ``prepare_s``: a worker's seconds a batch
    without that.  ``step.io_s`` is not used; ``comm_s``: as for :meth:`StepParts.seconds`.
    ``spread``: of each batch's and step's time, as the sigma of a log-normal of mean 1.
    """

    ranks: int
    workers: int
    prefetch: int
    prepare_s: float
    step: StepParts
    comm_s: Sequence[float] = ()
    read_bytes: float = 0.0
    bytes_per_s: float | None = None
    slow: tuple[float, ...] = ()  # factors of the first ranks' ``prepare_s``
    spread: float = 0.0

    def factor(self, rank: int) -> float:
        """Return how many times longer this rank prepares a batch."""
        return self.slow[rank] if rank < len(self.slow) else 1.0


def ends_s(job: SimulatedJob, steps: int, *, seed: int = 0) -> list[float]:
    """Return when each of ``steps`` steps has ended, in seconds since the queues were empty."""
    run = _Simulation(job, random.Random(seed))
    run.env.run(run.env.process(run.steps(steps)))
    return run.ended


def step_s(job: SimulatedJob, steps: int = 200, *, seed: int = 0) -> float:
    """Return the mean seconds a step, without those that the queue took to settle."""
    workers = max(job.workers, 1)
    settled = min(2 * _room(job), steps // 4)
    settled += (steps - 1 - settled) % workers  # they may deliver in bursts: whole rounds of them
    ends = ends_s(job, steps, seed=seed)
    return (ends[-1] - ends[settled]) / (steps - 1 - settled)


class _Simulation:
    """The processes of one simulation."""

    def __init__(self, job: SimulatedJob, noise: random.Random) -> None:
        import simpy

        self.job, self.noise = job, noise
        self.env: Any = simpy.Environment()
        self.ended: list[float] = []
        self.storage: Any = simpy.Resource(self.env)
        room = _room(job)
        self.queues: list[Any] = [simpy.Store(self.env) for _ in range(job.ranks)]
        self.rooms: list[Any] = [simpy.Container(self.env, room, room) for _ in range(job.ranks)]
        for rank in range(job.ranks):
            for _ in range(max(job.workers, 1)):
                self.env.process(self.worker(rank))

    def worker(self, rank: int) -> Generator[Any, Any, None]:
        """Make batches as long as there is room for them."""
        job = self.job
        while True:
            yield self.rooms[rank].get(1)
            if job.bytes_per_s:
                with self.storage.request() as turn:
                    yield turn
                    yield self.env.timeout(job.read_bytes / job.bytes_per_s)
            yield self.env.timeout(self.drawn(job.prepare_s * job.factor(rank)))
            yield self.queues[rank].put(None)

    def steps(self, count: int) -> Generator[Any, Any, None]:
        """Have all ranks compute, then exchange what the backward pass does not hide."""
        env, job = self.env, self.job
        exposed = exposed_s(job.step.backward_s, job.comm_s) if job.comm_s else 0.0
        for _ in range(count):
            yield env.all_of([env.process(self.computed(rank)) for rank in range(job.ranks)])
            yield env.timeout(exposed + job.step.update_s)
            self.ended.append(env.now)

    def computed(self, rank: int) -> Generator[Any, Any, None]:
        """Take a batch and compute on it, up to the end of the backward pass."""
        step = self.job.step
        yield self.queues[rank].get()
        yield self.rooms[rank].put(1)
        yield self.env.timeout(self.drawn(step.h2d_s + step.compute_s - step.update_s))

    def drawn(self, seconds: float) -> float:
        """Return the time of one piece of work, with the job's spread."""
        spread = self.job.spread
        return seconds * self.noise.lognormvariate(-(spread**2) / 2, spread) if spread else seconds


def _room(job: SimulatedJob) -> int:
    return max(job.workers, 1) * max(job.prefetch, 1)
