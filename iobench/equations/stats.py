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

from iobench.equations import signed_rank
from iobench.equations.signed_rank import FLOOR_PAIRS, Floats

#: What we ask for.
WANTED_PAIRS = 10
#: Of a whole family of contrasts, all looks included.
ALPHA = 0.05
#: Of the limits of everything that is no contrast.
LEVEL = 0.95

EQUIVALENT, FASTER, SLOWER = "EQUIVALENT", "FASTER", "SLOWER"
INCONCLUSIVE, NO_VERDICT = "INCONCLUSIVE", "EXPLORATORY"


@dataclasses.dataclass(frozen=True)
class Interval:
    """A point with its limits; infinite limits mean that ``n`` is too small for ``level``."""

    value: float
    low: float
    high: float
    level: float
    n: int
    method: str

    @property
    def limited(self) -> bool:
        """Whether both limits are finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def inverse(self) -> Interval:
        """Return the interval of 1/x, such as a rate of a time; no upper limit for low <= 0."""
        low = 0.0 if math.isinf(self.high) else 1 / self.high
        high = math.inf if self.low <= 0 else 1 / self.low
        return dataclasses.replace(self, value=1 / self.value, low=low, high=high)

    def widened(self, bound: float) -> Interval:
        """Return the interval with a stated systematic bound added on both sides."""
        return dataclasses.replace(self, low=self.low - bound, high=self.high + bound)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of one contrast.

    ``interval`` (95 %) and ``interval90`` are for this contrast alone, the ``simultaneous`` ones
    for its family (Bonferroni); the verdict uses the latter.  ``smallest_effect``: the relative
    change resolved with 90 % power (0.05: 5 %).  ``pairs_needed``: 0 when the verdict stands.
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
    note: str = ""


def t_interval(values: Sequence[float]) -> Interval:
    """Return mean and Student-t limits (sample sd, n-1); one value has infinite limits.

    Raises ValueError for no value.
    """
    n = len(values)
    if not n:
        raise ValueError("no value")
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, -math.inf, math.inf, LEVEL, 1, "t")
    half = _t_quantile(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, LEVEL, n, "t")


def geometric_interval(values: Sequence[float]) -> Interval:
    """Return geometric mean and limits of positive values (Student's t of their logarithms).

    Of times and rates over wide ranges: no limit is below 0, and that of a rate is that of the time
    turned over.  Raises ValueError for no value and for one that is not positive.
    """
    return _exp(t_interval(list(_logs(values))))


def unpaired_difference(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Return mean(a) - mean(b) with Welch's t limits; a side of one value has infinite limits.

    Raises ValueError when a side is empty.
    """
    if not len(a) or not len(b):
        raise ValueError("no value on one side")
    x, y = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    point, n = float(x.mean() - y.mean()), min(len(x), len(y))
    if n < 2:
        return Interval(point, -math.inf, math.inf, LEVEL, n, "welch")
    vx, vy = float(x.var(ddof=1)) / len(x), float(y.var(ddof=1)) / len(y)
    half = 0.0
    if vx + vy > 0:
        df = (vx + vy) ** 2 / (vx**2 / (len(x) - 1) + vy**2 / (len(y) - 1))
        half = _t_quantile(df) * math.sqrt(vx + vy)
    return Interval(point, point - half, point + half, LEVEL, n, "welch")


def unpaired_ratio(arm: Sequence[float], base: Sequence[float]) -> Interval:
    """Return the ratio of geometric means, arm / base, with Welch's t limits on the logarithms.

    Never a verdict.  Raises ValueError when a side is empty or a value is not positive.
    """
    return _exp(unpaired_difference(list(_logs(arm)), list(_logs(base))))


def bootstrap(
    statistic: Callable[..., Any], groups: Sequence[Sequence[float]], *, seed: int = 0
) -> Interval:
    """Return a derived quantity with percentile bootstrap limits (scipy.stats.bootstrap).

    ``statistic`` takes one array a group and ``axis``, along which it reduces them: all resamples
    are one call.  Groups are resampled independently.  At fewer than about 30 values a group the
    limits are too narrow: for derived quantities, never for verdicts.
    """
    from scipy import stats

    data = tuple(np.asarray(g, dtype=float) for g in groups)
    point, n = float(statistic(*data, axis=-1)), min(len(g) for g in data)
    if n < 2:
        return Interval(point, -math.inf, math.inf, LEVEL, n, "bootstrap")
    found = stats.bootstrap(
        data,
        statistic,
        confidence_level=LEVEL,
        n_resamples=999,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(point, float(found.low), float(found.high), LEVEL, n, "bootstrap")


def outliers(values: Sequence[float]) -> list[int]:
    """Return positions whose modified z-score passes 3.5: to be flagged, never dropped.

    0.6745 (x - median) / MAD, Iglewicz and Hoaglin 1993.  Where over half of the values are
    equal MAD is 0, and every other value is flagged.
    """
    x = np.asarray(values, dtype=float)
    if len(x) < 3:
        return []
    distance = np.abs(x - np.median(x))
    mad = float(np.median(distance))
    far = distance > 0 if mad == 0 else 0.6745 * distance / mad > 3.5
    return [int(i) for i in np.flatnonzero(far)]


def effective(values: Sequence[float]) -> float:
    """Return Kish's effective number of values, (sum x)^2 / sum x^2 (Kish 1965).

    Their number where all are equal; near 1 where one is most of the sum; 0.0 for none.
    """
    x = np.asarray(values, dtype=float)
    squares = float(np.sum(x * x))
    return float(np.sum(x)) ** 2 / squares if squares else 0.0


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
    k = signed_rank.signed_rank_k(n, level)
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
    and ``equal`` are the nominal levels of :class:`~iobench.equations.sequential.Level`: 0.05 /
    family for who looks once.
    Raises ValueError as :func:`paired_ratio` does.
    """
    n = len(arm)
    at = functools.partial(paired_ratio, arm, base)
    i95, i90 = at(level=0.95), at(level=0.90)
    alpha = ALPHA / family if differ is None else differ
    one_sided = ALPHA / family if equal is None else equal
    s95, s90 = at(level=1 - alpha), at(level=1 - 2 * one_sided)
    sd = float(np.std(_logs(arm) - _logs(base), ddof=1)) if n > 1 else math.nan
    outcome = _judge(s95, s90, margin, n)
    needed, note, fewest = 0, "", signed_rank.fewest_pairs(alpha)
    if n < FLOOR_PAIRS:
        needed = WANTED_PAIRS - n
        note = f"fewer than {FLOOR_PAIRS} pairs: no verdict"
    elif outcome == INCONCLUSIVE:
        target = max(math.expm1(abs(math.log(i95.value))), margin)
        needed = max(1, signed_rank.pairs_for(target, sd, alpha=alpha) - n)
    if FLOOR_PAIRS <= n < fewest:
        note = f"{family} judged together: no difference can be told below {fewest} pairs"
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
        smallest_effect=signed_rank.smallest_effect(sd, n, alpha=alpha),
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


def _t_quantile(df: float) -> float:
    from scipy import special

    return float(special.stdtrit(df, (1 + LEVEL) / 2))
