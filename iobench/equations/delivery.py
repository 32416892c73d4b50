"""What delivering batches in their order costs: the same work, with and without that order.

A worker that is at a slow batch holds up the batches behind it: those that are made wait, and the
other workers stop once the queue is full (head-of-line blocking; MinatoLoader, arXiv 2509.10712).
Derived from how torch's DataLoader deals batches out: batch k is worker k's modulo their number,
and is asked for when batch k - ahead is taken.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence


def in_order(make_s: Sequence[float], step_s: Sequence[float], workers: int, ahead: int) -> float:
    """Return the seconds of a loop that takes its batches in order.

    ``make_s``: what a worker takes to make each batch.  ``step_s``: what the loop does with each.
    ``ahead``: batches asked for and not taken yet, at most.
    """
    free = [0.0] * workers
    taken: list[float] = []
    now = 0.0
    for k, (make, step) in enumerate(zip(make_s, step_s, strict=True)):
        asked = taken[k - ahead] if k >= ahead else 0.0
        worker = k % workers
        free[worker] = max(free[worker], asked) + make
        taken.append(max(now, free[worker]))
        now = taken[-1] + step
    return now


def as_made(make_s: Sequence[float], step_s: Sequence[float], workers: int, ahead: int) -> float:
    """Return the seconds of the same loop where it takes whichever batch was made first.

    The next batch goes to the next worker, in turn, that has fewer than its share of ``ahead``.
    """
    free, tasks = [0.0] * workers, [0] * workers
    turn = itertools.cycle(range(workers))
    made: list[tuple[float, int]] = []
    left = iter(make_s)

    def ask(at: float) -> None:
        make = next(left, None)
        if make is None:
            return
        worker = next(w for w in turn if tasks[w] < ahead // workers)
        tasks[worker] += 1
        free[worker] = max(free[worker], at) + make
        heapq.heappush(made, (free[worker], worker))

    for _ in range(min(ahead, len(make_s))):
        ask(0.0)
    now = 0.0
    for step in step_s:
        ready, worker = heapq.heappop(made)
        tasks[worker] -= 1
        now = max(now, ready)
        ask(now)
        now += step
    return now


def held_s(request_s: Sequence[float], ready_s: Sequence[float], made_s: Sequence[float]) -> float:
    """Return the seconds in which the loop waited for a batch and a later one was made already."""
    later = list(itertools.accumulate(reversed(made_s), min))[::-1][1:]
    waits = zip(request_s, ready_s, later, strict=False)
    return sum(max(0.0, ready - max(asked, first)) for asked, ready, first in waits)
