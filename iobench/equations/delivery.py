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
from typing import NamedTuple


class Batches(NamedTuple):
    """What each batch took, in seconds.

    ``make``: its worker, from when it was free and asked; ``take``: the loop, from when it asked
    and the batch was made; ``step``: what the loop then did with it.
    """

    make: Sequence[float]
    take: Sequence[float]
    step: Sequence[float]


def batches(
    request_s: Sequence[float],
    ready_s: Sequence[float],
    done_s: Sequence[float],
    made_s: Sequence[float],
    *,
    workers: int,
    ahead: int,
) -> Batches:
    """Return what each batch took in a loop that took them in order, from its clock readings.

    ``ahead``: batches asked for and not taken yet, at most.
    """
    make = []
    for k, made in enumerate(made_s):
        asked = ready_s[k - ahead] if k >= ahead else 0.0
        make.append(max(0.0, made - max(asked, made_s[k - workers] if k >= workers else 0.0)))
    take = [ready - max(asked, made)
            for asked, ready, made in zip(request_s, ready_s, made_s, strict=True)]  # fmt: skip
    return Batches(make, take, [b - a for a, b in zip(ready_s, done_s, strict=True)])


def in_order(of: Batches, workers: int, ahead: int) -> float:
    """Return the seconds of a loop that takes its batches in order."""
    free = [0.0] * workers
    ready: list[float] = []
    now = 0.0
    for k, (make, take, step) in enumerate(zip(*of, strict=True)):
        asked = ready[k - ahead] if k >= ahead else 0.0
        worker = k % workers
        free[worker] = max(free[worker], asked) + make
        ready.append(max(now, free[worker]) + take)
        now = ready[-1] + step
    return now


def as_made(of: Batches, workers: int, ahead: int) -> float:
    """Return the seconds of the same loop where it takes whichever batch was made first.

    The next batch goes to the next worker, in turn, that has fewer than its share of ``ahead``.
    """
    free, tasks = [0.0] * workers, [0] * workers
    turn = itertools.cycle(range(workers))
    made: list[tuple[float, int]] = []
    left = iter(of.make)

    def ask(at: float) -> None:
        make = next(left, None)
        if make is None:
            return
        worker = next(w for w in turn if tasks[w] < ahead // workers)
        tasks[worker] += 1
        free[worker] = max(free[worker], at) + make
        heapq.heappush(made, (free[worker], worker))

    for _ in range(min(ahead, len(of.make))):
        ask(0.0)
    now = 0.0
    for take, step in zip(of.take, of.step, strict=True):
        first, worker = heapq.heappop(made)
        tasks[worker] -= 1
        now = max(now, first) + take
        ask(now)
        now += step
    return now


def handed_s(
    request_s: Sequence[float], ready_s: Sequence[float], made_s: Sequence[float]
) -> list[float]:
    """Return the seconds in which the loop took each batch that was made before the last was taken.

    Nothing had to be waited for but the hand-over.
    """
    later = zip(request_s[1:], ready_s[1:], made_s[1:], ready_s, strict=False)
    return [ready - asked for asked, ready, made, before in later if made < before]


def held_s(request_s: Sequence[float], ready_s: Sequence[float], made_s: Sequence[float]) -> float:
    """Return the seconds in which the loop waited for a batch and a later one was made already."""
    later = list(itertools.accumulate(reversed(made_s), min))[::-1][1:]
    waits = zip(request_s, ready_s, later, strict=False)
    return sum(max(0.0, ready - max(asked, first)) for asked, ready, first in waits)
