"""The signed-rank test of paired differences: its limits, and what so many pairs can resolve."""

from __future__ import annotations

import bisect
import functools
import math

import numpy as np
from numpy.typing import NDArray

#: Up to this many pairs the signed-rank distribution is computed exactly.
EXACT_PAIRS = 60
#: Two-sided p < 0.05 needs six pairs (2 / 2^6); below that there is no verdict.
FLOOR_PAIRS = 6
POWER = 0.90
#: Asymptotic relative efficiency of the signed-rank test against the t-test on normal data, 3/pi.
SIGNED_RANK_ARE = 3 / math.pi

Floats = NDArray[np.float64]


@functools.lru_cache(maxsize=128)
def _signed_rank_cdf(n: int) -> Floats:
    """P(T+ <= t) for t = 0..n(n+1)/2 under the null: each rank enters with probability 1/2."""
    p = np.zeros(n * (n + 1) // 2 + 1)
    p[0] = 1.0
    for rank in range(1, n + 1):
        p[rank:] = 0.5 * p[rank:] + 0.5 * p[:-rank]  # the right side is evaluated first
        p[:rank] *= 0.5
    cdf: Floats = np.cumsum(p)
    return cdf


def signed_rank_k(n: int, level: float) -> int:
    """Return k: the limits are the k-th smallest and k-th largest Walsh average (0: none exist).

    Largest k with P(T+ <= k-1) <= (1 - level) / 2; exact up to 60 pairs, then the normal
    approximation with continuity correction.
    """
    tail = (1 - level) / 2
    if n <= EXACT_PAIRS:
        return int(np.searchsorted(_signed_rank_cdf(n), tail * (1 + 1e-12), side="right"))
    from scipy import special

    mean, var = n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24
    return max(0, math.floor(mean + float(special.ndtri(tail)) * math.sqrt(var) + 0.5))


def smallest_effect(sd: float, pairs: int, *, alpha: float = 0.05) -> float:
    """Return the relative change that ``pairs`` pairs of log-ratio sd ``sd`` resolve, 90 % power.

    Power of the paired t-test at 3/pi of the pairs (the signed-rank test's efficiency); infinite
    where the signed-rank interval does not exist.
    """
    if pairs < 2 or not signed_rank_k(pairs, 1 - alpha):
        return math.inf
    return math.expm1(sd * _detectable(pairs, alpha))


def fewest_pairs(alpha: float) -> int:
    """Return how many pairs a signed-rank interval of level 1 - ``alpha`` needs, at least six."""
    pairs = FLOOR_PAIRS
    while not signed_rank_k(pairs, 1 - alpha):
        pairs += 1
    return pairs


def pairs_for(effect: float, sd: float, *, alpha: float = 0.05) -> int:
    """Return how many pairs resolve a relative change ``effect``, 90 % power, at most 100,000.

    Never fewer than the floor of six, nor than the signed-rank interval needs.
    """
    low, target = fewest_pairs(alpha), math.log1p(effect)

    def enough(pairs: int) -> bool:
        return sd * _detectable(pairs, alpha) <= target

    return low + bisect.bisect_left(range(low, 100_000), True, key=enough)


@functools.lru_cache(maxsize=1024)
def _detectable(pairs: int, alpha: float) -> float:
    """Return the effect, in standard deviations, that a two-sided t test finds with POWER."""
    from scipy import special

    df = pairs * SIGNED_RANK_ARE - 1
    critical = special.stdtrit(df, 1 - alpha / 2)
    # the other tail adds less than 1e-6 where the power is 0.9
    return float(special.nctdtrinc(df, 1 - POWER, critical)) / math.sqrt(df + 1)
