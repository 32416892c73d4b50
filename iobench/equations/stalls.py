"""Model equations: weak scaling and data stalls, as pure functions.

Sources.  [Shi] Shi, Wang, Chu, arXiv 1711.05979 and 1805.03812, recurrences as in MG-WFBP.
[Mohan] Mohan et al., "Analyzing and mitigating data stalls in DNN training", VLDB 14(5), 2021.
[NoPFS] Dryden et al., "Clairvoyant prefetching for distributed machine learning I/O", SC 2021.
Times are seconds, rates samples per second.  "derived" marks what follows from these equations.
What is reported of them is defined in docs/method.md, "Stalls" and "Several ranks".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from statistics import fmean

from iobench.equations.stats import Interval, t_interval, unpaired_difference

#: What a loop and a loader cost to hand a waiting batch over, at most, seconds a step, where the
#: trial does not show that it was more: next() of a DataLoader with worker processes takes 0.2 to
#: 2.5 ms with a full queue and idle workers, and 2 ms more where it frees the 10 MB of the batch
#: before (measured).  It is a part of every wait: a stall below it cannot be told from none.
HANDOVER_S = 2e-3


def weak_scaling(t1: float, tn: float, n: int) -> tuple[float, float]:
    """Return (speedup n t(1) / t(n), efficiency) ([Shi])."""
    speedup = n * t1 / tn
    return speedup, speedup / n


def cache_needed(cache_rate: float, storage_rate: float, prep: float, compute: float) -> float:
    """Return the cached fraction that ends fetch stalls, in 0..1 (derived)."""
    demand = 1 / min(prep, compute)
    gain = 1 / storage_rate - 1 / cache_rate
    if gain <= 0:
        return 0.0 if 1 / storage_rate <= demand else 1.0
    return min(1.0, max(0.0, (1 / storage_rate - demand) / gain))


def lru_hit_ratio(cached: float) -> float:
    """Return the hit ratio of an LRU cache of this fraction of the data, each epoch reshuffled.

    x + (1 - x) ln(1 - x) (derived: a sample is still cached if fewer than x of the others came
    since).  A cache that never evicts gives x.
    """
    return cached + (1 - cached) * math.log1p(-cached) if cached < 1 else 1.0


def cores_needed(compute: float, prep_per_core: float) -> int:
    """Return ceil(G / one core's prep rate) (derived); check that it scales."""
    return math.ceil(compute / prep_per_core)


def au(steps: int, step_s: float, wall_s: float) -> float:
    """Return accelerator utilisation: steps x compute-only step / wall, same steps."""
    return steps * step_s / wall_s


def delay_change_s(delay: float, *, serial: float, workers: int, step: float) -> float:
    """Return the change per sample of a delay in the reader's or decoder's code (derived).

    ``serial``: loader seconds a sample on one worker; ``step``: trainer seconds a sample.
    max(0, (t+d)/W - s) - max(0, t/W - s): divided by the workers, masked while they keep up.
    """
    return max(0.0, (serial + delay) / workers - step) - max(0.0, serial / workers - step)


@dataclasses.dataclass(frozen=True)
class Window:
    """The measured window of a rank, or of a trial: its slowest rank's, the samples of all ranks.

    ``edge_s``: what the window's edges may have moved ``wall_s`` by, :func:`edge_shift_s`.
    ``handover_s``: what it took to take a batch that was there, seconds a step; 0: not known.
    """

    block: int
    steps: int
    samples: int
    wall_s: float
    wait_s: float
    compute_s: float
    edge_s: float = 0.0
    handover_s: float = 0.0

    @property
    def step_s(self) -> float:
        """Wall seconds a step."""
        return self.wall_s / self.steps

    @property
    def seconds_per_sample(self) -> float:
        """Wall seconds a sample."""
        return self.wall_s / self.samples


@dataclasses.dataclass(frozen=True)
class Stall:
    """A stall in seconds a sample, never clipped.

    ``interval`` holds sampling noise (95 % t) widened by ``bound_s``, the instrument's
    granularity.  ``paired``: repeats were paired by block.
    """

    interval: Interval
    bound_s: float
    paired: bool


def edge_shift_s(done_s: Sequence[float], *, warmup: int, workers: int) -> float:
    """Return how far the phase of the workers can have moved the window's wall time.

    ``workers`` deliver in bursts, so a step's end lags its batch by up to some steps; when they
    drift to an even spacing, the two edges of the window lag differently.  Windows of the same
    length that begin and end 1 .. workers-1 steps earlier have other lags: the largest difference
    to the window itself is returned (derived).  It is 0 for a pace that repeats every round, and at
    least the error where the step is at most half of the drift; a longer step hides part of it,
    which the repeats' spread holds.
    """
    last, first = len(done_s) - 1, warmup - 1
    wall = done_s[last] - (done_s[first] if warmup else 0.0)
    shifts = range(1, min(max(workers, 1), warmup))
    return max((abs(done_s[last - j] - done_s[first - j] - wall) for j in shifts), default=0.0)


def edge_bound_s(trials: Sequence[Window]) -> float:
    """Return the mean of :func:`edge_shift_s` over the trials, in seconds a sample.

    Raises ValueError for no trial.
    """
    if not trials:
        raise ValueError("no trial on one side")
    return fmean(t.edge_s / t.samples for t in trials)


def handover_bound_s(trials: Sequence[Window]) -> float:
    """Return the share of the waits that may be hand-over, seconds a sample: at most the waits."""
    handed = (min(max(HANDOVER_S, t.handover_s) * t.steps, t.wait_s) for t in trials)
    return fmean(max(0.0, s) / t.samples for s, t in zip(handed, trials, strict=True))


def fetch_stall(cold: Sequence[Window], warm: Sequence[Window]) -> Stall:
    """Return T(cold) - T(warm), seconds a sample ([Mohan]), of whole epochs.

    What both epochs lag alike at their end cancels in the difference.
    Raises ValueError when a side is empty.
    """
    edges = abs(edge_bound_s(cold) - edge_bound_s(warm))
    return _difference(cold, warm, edges + handover_bound_s(warm))


def prep_stall(
    warm: Sequence[Window], compute: Sequence[Window]
) -> tuple[Stall, Interval, Interval]:
    """Return (T(warm) - T(compute), its wait part, its contention part), seconds a sample.

    wait: what the loop waited for batches.  contention: by how much its steps took longer than
    the ``compute`` stage's, because the loader uses the same cores.
    Raises ValueError when a side is empty.
    """
    stall = _difference(warm, compute, edge_bound_s(warm) + handover_bound_s(warm))
    wait = t_interval([t.wait_s / t.samples for t in warm])
    alone = fmean(t.seconds_per_sample for t in compute)
    contention = t_interval([t.compute_s / t.samples - alone for t in warm])
    return stall, wait, contention


def communication(several: Sequence[Window], alone: Sequence[Window]) -> Stall:
    """Return T(compute, n ranks) - T(compute, one rank), seconds a step.

    docs/method.md, "Several ranks".  Raises ValueError when a side is empty.
    """
    interval, paired = _differences(several, alone, lambda t: t.step_s)
    return Stall(interval, 0.0, paired)


def waited_fetch_s(cold: Sequence[Window], warm: Sequence[Window]) -> Interval:
    """Return the waited account of the fetch stall: waits cold - waits warm, seconds a sample."""
    return _differences(cold, warm, lambda t: t.wait_s / t.samples)[0]


def _difference(a: Sequence[Window], b: Sequence[Window], bound: float) -> Stall:
    interval, paired = _differences(a, b, lambda t: t.seconds_per_sample)
    return Stall(interval.widened(bound), bound, paired)


def _differences(
    a: Sequence[Window], b: Sequence[Window], value: Callable[[Window], float]
) -> tuple[Interval, bool]:
    """Return (interval of a - b, whether paired): t on block differences, else Welch's."""
    if not a or not b:
        raise ValueError("no trial on one side")
    left = {t.block: value(t) for t in a}
    right = {t.block: value(t) for t in b}
    paired = len(left) == len(a) and len(right) == len(b) and left.keys() == right.keys()
    if paired and len(a) > 1:
        return t_interval([left[k] - right[k] for k in sorted(left)]), True
    return unpaired_difference([value(t) for t in a], [value(t) for t in b]), False
