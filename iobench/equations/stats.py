"""Intervals and the verdict rule: docs/method.md, "Verdicts".

Unit of every sample here: one run in a fresh process.  Steps, epochs and ranks are never repeats.
Ratios are seconds per sample, arm / base, paired in blocks, and are handled as logarithms.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Up to this many pairs the signed-rank distribution is computed exactly.
EXACT_PAIRS = 60
#: Two-sided p < 0.05 needs six pairs (2 / 2^6); below that there is no verdict.
FLOOR_PAIRS = 6
#: What we ask for.
WANTED_PAIRS = 10
#: Of a whole family of contrasts, all looks included.
ALPHA = 0.05
POWER = 0.90
#: Asymptotic relative efficiency of the signed-rank test against the t-test on normal data, 3/pi.
SIGNED_RANK_ARE = 3 / math.pi

EQUIVALENT, FASTER, SLOWER = "EQUIVALENT", "FASTER", "SLOWER"
INCONCLUSIVE, NO_VERDICT = "INCONCLUSIVE", "EXPLORATORY"

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Interval:
    """A point with its limits; infinite limits mean that ``n`` is too small for ``level``."""

    value: float
    low: float
    high: float
    level: float
    n: int
    method: str

    def contains(self, x: float) -> bool:
        """Return whether ``x`` lies inside, limits included."""
        return self.low <= x <= self.high

    def widened(self, bound: float) -> Interval:
        """Return the interval with a stated systematic bound added on both sides."""
        return dataclasses.replace(self, low=self.low - bound, high=self.high + bound)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of one contrast.

    ``interval`` (95 %) and ``interval90`` are for this contrast alone, the ``simultaneous`` ones
    for its family (Bonferroni); the verdict uses the latter.  ``smallest_effect`` is the relative
    change that noise and pairs could have resolved with 90 % power (0.05: 5 %).
    ``pairs_needed`` are pairs still missing, 0 when the verdict stands.
    """

    verdict: str
    ratio: float
    interval: Interval
    interval90: Interval
    simultaneous: Interval
    simultaneous90: Interval
    pairs: int
    pairs_needed: int
    smallest_effect: float
    family: int
    margin: float
    note: str = ""


# -- means of few repeats --------------------------------------------------------------------


def t_interval(values: Sequence[float], *, level: float = 0.95) -> Interval:
    """Return mean and Student-t limits (sample sd, n-1); one value has infinite limits.

    Raises ValueError for no value.
    """
    n = len(values)
    if not n:
        raise ValueError("no value")
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, -math.inf, math.inf, level, 1, "t")
    half = _t_quantile(level, n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, level, n, "t")


def unpaired_difference(a: Sequence[float], b: Sequence[float], *, level: float = 0.95) -> Interval:
    """Return mean(a) - mean(b) with Welch's t limits; a side of one value has infinite limits.

    Raises ValueError when a side is empty.
    """
    if not len(a) or not len(b):
        raise ValueError("no value on one side")
    x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    point, n = float(x.mean() - y.mean()), min(len(x), len(y))
    if n < 2:
        return Interval(point, -math.inf, math.inf, level, n, "welch")
    vx, vy = float(x.var(ddof=1)) / len(x), float(y.var(ddof=1)) / len(y)
    half = 0.0
    if vx + vy > 0:
        df = (vx + vy) ** 2 / (vx**2 / (len(x) - 1) + vy**2 / (len(y) - 1))
        half = _t_quantile(level, df) * math.sqrt(vx + vy)
    return Interval(point, point - half, point + half, level, n, "welch")


def unpaired_ratio(arm: Sequence[float], base: Sequence[float], *, level: float = 0.95) -> Interval:
    """Return the ratio of geometric means, arm / base, with Welch's t limits on the logarithms.

    For results that share no block (another machine, another date): never a verdict.
    Raises ValueError when a side is empty or a value is not positive.
    """
    return _exp(unpaired_difference(list(_logs(arm)), list(_logs(base)), level=level))


def bootstrap(
    statistic: Callable[..., float],
    groups: Sequence[Sequence[float]],
    *,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Return a derived quantity with percentile bootstrap limits (scipy.stats.bootstrap).

    ``statistic`` takes one array a group; groups are resampled independently.  At fewer than
    about 30 values a group the limits are too narrow: for derived quantities, never for verdicts.
    """
    from scipy import stats

    data = tuple(np.asarray(g, dtype=float) for g in groups)
    point, n = float(statistic(*data)), min(len(g) for g in data)
    if n < 2:
        return Interval(point, -math.inf, math.inf, level, n, "bootstrap")
    found = stats.bootstrap(
        data,
        lambda *g: statistic(*g),
        confidence_level=level,
        n_resamples=999,
        method="percentile",
        vectorized=False,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(point, float(found.low), float(found.high), level, n, "bootstrap")


def outliers(values: Sequence[float], *, limit: float = 3.5) -> list[int]:
    """Return positions whose modified z-score passes ``limit``: to be flagged, never dropped.

    0.6745 (x - median) / MAD, Iglewicz and Hoaglin 1993.  Where over half of the values are
    equal MAD is 0, and every other value is flagged.
    """
    x = np.asarray(values, dtype=float)
    if len(x) < 3:
        return []
    distance = np.abs(x - np.median(x))
    mad = float(np.median(distance))
    far = distance > 0 if mad == 0 else 0.6745 * distance / mad > limit
    return [int(i) for i in np.flatnonzero(far)]


# -- paired ratios: Hodges-Lehmann and exact signed-rank limits -------------------------------


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
    from scipy import stats

    mean, var = n * (n + 1) / 4, n * (n + 1) * (2 * n + 1) / 24
    return max(0, math.floor(mean + float(stats.norm.ppf(tail)) * math.sqrt(var) + 0.5))


def hodges_lehmann(differences: Sequence[float], *, level: float = 0.95) -> Interval:
    """Return the median of the Walsh averages with the signed-rank test's limits.

    Valid under symmetry of the differences' noise alone.  Raises ValueError for no difference.
    """
    d = np.asarray(differences, dtype=float)
    n = len(d)
    if not n:
        raise ValueError("no pair")
    i, j = np.triu_indices(n)
    walsh = np.sort((d[i] + d[j]) / 2)
    k = signed_rank_k(n, level)
    low, high = (float(walsh[k - 1]), float(walsh[-k])) if k else (-math.inf, math.inf)
    return Interval(float(np.median(walsh)), low, high, level, n, "signed-rank")


def paired_ratio(arm: Sequence[float], base: Sequence[float], *, level: float = 0.95) -> Interval:
    """Return the ratio arm / base of paired values (seconds per sample) with its interval.

    Raises ValueError when the sides differ in length, are empty or hold a value <= 0.
    """
    if len(arm) != len(base):
        raise ValueError(f"{len(arm)} values of the arm, {len(base)} of the base")
    return _exp(hodges_lehmann(list(_logs(arm) - _logs(base)), level=level))


def _exp(logs: Interval) -> Interval:
    low = math.exp(logs.low) if math.isfinite(logs.low) else -math.inf  # exp(-inf) is a limit, 0
    return dataclasses.replace(logs, value=math.exp(logs.value), low=low, high=math.exp(logs.high))


# -- power ------------------------------------------------------------------------------------


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


def pairs_for(effect: float, sd: float, *, alpha: float = 0.05, limit: int = 100_000) -> int:
    """Return how many pairs resolve a relative change ``effect``, 90 % power, at most ``limit``.

    Never fewer than the floor of six, nor than the signed-rank interval needs.
    """
    low = fewest_pairs(alpha)
    target = math.log1p(effect)
    if sd * _detectable(low, alpha) <= target:
        return low
    high = low
    while sd * _detectable(high, alpha) > target:
        if high >= limit:
            return limit
        low, high = high, min(2 * high, limit)
    while high - low > 1:
        middle = (low + high) // 2
        if sd * _detectable(middle, alpha) <= target:
            high = middle
        else:
            low = middle
    return high


@functools.lru_cache(maxsize=1024)
def _detectable(pairs: int, alpha: float) -> float:
    """Return the effect, in standard deviations, that a two-sided t test finds with POWER."""
    from scipy import optimize, stats

    nobs = pairs * SIGNED_RANK_ARE
    critical = float(stats.t.isf(alpha / 2, nobs - 1))

    def missing(effect: float) -> float:
        # the other tail adds less than 1e-6 where the power is 0.9, and scipy has a NaN for it
        return float(stats.nct.sf(critical, nobs - 1, effect * math.sqrt(nobs))) - POWER

    low = float(stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(POWER)) / math.sqrt(nobs) / 1.1
    high = low * 1.2
    while missing(high) < 0:
        low, high = high, high * 1.2
    return float(optimize.brentq(missing, low, high))


# -- the verdict ------------------------------------------------------------------------------


def verdict(
    arm: Sequence[float],
    base: Sequence[float],
    *,
    margin: float = 0.03,
    family: int = 1,
    differ: float | None = None,
    equal: float | None = None,
) -> Verdict:
    """Judge paired seconds per sample: ``arm`` against ``base`` (docs/method.md).

    ``margin`` was stated beforehand; ``family`` counts the contrasts judged together.  ``differ``
    and ``equal`` are the nominal levels of the test for a difference (two-sided) and of each of
    the two for equivalence: 0.05 / family for who looks once (:mod:`iobench.looks` has more).
    Raises ValueError as :func:`paired_ratio` does.
    """
    n = len(arm)
    at = functools.partial(paired_ratio, arm, base)
    i95, i90 = at(level=0.95), at(level=0.90)
    alpha = ALPHA / family if differ is None else differ
    one_sided = ALPHA / family if equal is None else equal
    s95, s90 = at(level=1 - alpha), at(level=1 - 2 * one_sided)
    sd = float(np.std(_logs(arm) - _logs(base), ddof=1)) if n > 1 else math.nan
    effect = smallest_effect(sd, n, alpha=alpha)
    outcome = _judge(s95, s90, margin, n)
    needed, note = 0, ""
    if n < FLOOR_PAIRS:
        needed = WANTED_PAIRS - n
        note = f"fewer than {FLOOR_PAIRS} pairs: no verdict"
    elif outcome == INCONCLUSIVE:
        target = max(math.expm1(abs(math.log(i95.value))), margin)
        needed = max(1, pairs_for(target, sd, alpha=alpha) - n)
    if FLOOR_PAIRS <= n < fewest_pairs(alpha):
        note = (
            f"{family} judged together: no difference can be told below {fewest_pairs(alpha)} pairs"
        )
    elif FLOOR_PAIRS <= n < WANTED_PAIRS:
        note = f"{n} pairs: fewer than the {WANTED_PAIRS} we ask for"
    return Verdict(
        verdict=outcome,
        ratio=i95.value,
        interval=i95,
        interval90=i90,
        simultaneous=s95,
        simultaneous90=s90,
        pairs=n,
        pairs_needed=needed,
        smallest_effect=effect,
        family=family,
        margin=margin,
        note=note,
    )


def _judge(s95: Interval, s90: Interval, margin: float, n: int) -> str:
    if n < FLOOR_PAIRS:
        return NO_VERDICT
    if 1 / (1 + margin) <= s90.low and s90.high <= 1 + margin:
        return EQUIVALENT
    if s95.high < 1:
        return FASTER
    if s95.low > 1:
        return SLOWER
    return INCONCLUSIVE


def _logs(values: Sequence[float]) -> Floats:
    x = np.asarray(values, dtype=float)
    if not len(x) or not np.all(x > 0):
        raise ValueError("a ratio needs positive values on both sides")
    logs: Floats = np.log(x)
    return logs


def _t_quantile(level: float, df: float) -> float:
    from scipy import stats

    quantile: Any = stats.t.ppf((1 + level) / 2, df)
    return float(quantile)
