"""Intervals against scipy by duality, the verdict rule on hand-made pairs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from iobench.equations import signed_rank, stats

RNG = np.random.default_rng(7)
TEN = [math.log(1.01 + 0.002 * i) for i in range(10)]


@pytest.mark.parametrize("n", [6, 7, 10, 15, 25])
@pytest.mark.parametrize("level", [0.90, 0.95, 0.99])
def test_signed_rank_limits_are_dual_to_scipys_exact_p(n: int, level: float) -> None:
    d = RNG.normal(0.02, 0.05, n)
    found = stats.hodges_lehmann(list(d), level=level)
    if math.isinf(found.low):
        assert 2 / 2**n > 1 - level
        return
    eps = 1e-9

    def p(theta: float) -> float:
        return float(scipy_stats.wilcoxon(d - theta, method="exact").pvalue)

    assert p(found.low - eps) <= 1 - level < p(found.low + eps)
    assert p(found.high + eps) <= 1 - level < p(found.high - eps)
    assert found.low <= found.value <= found.high


def test_limits_at_ten_pairs_are_the_textbooks() -> None:
    # Hollander and Wolfe: n = 10, 95.1 %: the 9th smallest and largest of 55 Walsh averages
    assert signed_rank.signed_rank_k(10, 0.95) == 9
    assert signed_rank.signed_rank_k(6, 0.95) == 1
    assert signed_rank.signed_rank_k(5, 0.95) == 0
    assert signed_rank.signed_rank_k(10, 0.90) == 11


def test_null_distribution_is_whole_and_symmetric() -> None:
    cdf = signed_rank._signed_rank_cdf(20)
    assert cdf[-1] == pytest.approx(1.0, abs=1e-12)
    p = np.diff(np.concatenate([[0.0], cdf]))
    assert np.allclose(p, p[::-1])
    assert p[0] == 2.0**-20


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_normal_approximation_takes_over_without_a_jump(level: float) -> None:
    cdf = signed_rank._signed_rank_cdf(61)
    exact = int(np.searchsorted(cdf, (1 - level) / 2, side="right"))
    assert abs(signed_rank.signed_rank_k(61, level) - exact) <= 0.01 * exact


def test_paired_ratio_is_arm_over_base() -> None:
    base = [0.010, 0.011, 0.012, 0.010, 0.011, 0.013]
    found = stats.paired_ratio([2 * b for b in base], base, level=0.95)
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))
    assert found.n == 6


@pytest.mark.parametrize(
    ("arm", "base"), [([1.0], [1.0, 2.0]), ([], []), ([0.0], [1.0]), ([1.0], [-1.0])]
)
def test_paired_ratio_refuses(arm: list[float], base: list[float]) -> None:
    with pytest.raises(ValueError, match=r"values|positive"):
        stats.paired_ratio(arm, base)


def test_a_limit_that_does_not_exist_is_infinite_and_not_zero() -> None:
    found = stats.paired_ratio([1.1, 1.2, 1.3], [1.0] * 3)
    assert (found.low, found.high) == (-math.inf, math.inf)
    found = stats.unpaired_ratio([1.1], [1.0, 1.2])
    assert (found.low, found.high) == (-math.inf, math.inf)
    verdict = stats.verdict([1.5] * 6, [1.0] * 6, family=9)
    assert verdict.simultaneous.low == -math.inf
    assert verdict.verdict == stats.INCONCLUSIVE


def test_t_interval_is_scipys_and_uses_n_minus_1() -> None:
    values = [3.1, 2.9, 3.3]
    found = stats.t_interval(values)
    low, high = scipy_stats.t.interval(0.95, 2, loc=np.mean(values), scale=scipy_stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert stats.t_interval([3.0]).high == math.inf
    with pytest.raises(ValueError, match="no value"):
        stats.t_interval([])


def test_unpaired_difference_is_welchs() -> None:
    a, b = [1.0, 1.2, 1.1, 1.4], [0.8, 0.9, 1.0]
    theirs = scipy_stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    ours = stats.unpaired_difference(a, b)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert stats.unpaired_difference([1.0], b).low == -math.inf


def test_unpaired_ratio_works_on_logarithms() -> None:
    found = stats.unpaired_ratio([2.0, 8.0], [1.0, 4.0])
    assert found.value == pytest.approx(2.0)
    assert found.low * found.high == pytest.approx(4.0)


def test_bootstrap_is_seeded_and_brackets_the_point() -> None:
    groups = [list(RNG.normal(10, 1, 40)), list(RNG.normal(5, 1, 40))]

    def headroom(a: np.ndarray, b: np.ndarray, axis: int) -> Any:
        return a.mean(axis=axis) / b.mean(axis=axis)

    one = stats.bootstrap(headroom, groups, seed=3)
    assert one == stats.bootstrap(headroom, groups, seed=3)
    assert one.low < one.value < one.high


def test_few_slow_values_are_effectively_few() -> None:
    assert stats.effective([0.5] * 7) == pytest.approx(7)
    assert stats.effective([1.0, 0.0, 0.0]) == pytest.approx(1)
    assert stats.effective([3.0, 1.0]) == pytest.approx(16 / 10)
    assert stats.effective([]) == 0.0


def test_outliers_are_named() -> None:
    assert stats.outliers([1.0, 1.01, 0.99, 1.0, 6.0, 1.02]) == [4]
    assert stats.outliers([1.0, 1.0, 1.0, 2.0]) == [3]
    assert stats.outliers([1.0, 6.0]) == []


def test_power_reproduces_statsmodels() -> None:
    from statsmodels.stats.power import TTestPower

    effect = math.log1p(signed_rank.smallest_effect(0.02, 10)) / 0.02
    power = TTestPower().power(effect, 10 * 3 / math.pi, 0.05)
    assert power == pytest.approx(0.90, abs=1e-6)


@pytest.mark.parametrize("family", [1, 8, 16, 25, 40, 300])
def test_every_family_that_has_an_interval_has_a_power(family: int) -> None:
    """scipy's far tail, which statsmodels adds, is NaN at many of these."""
    least = signed_rank.fewest_pairs(0.05 / family)
    effects = [
        signed_rank.smallest_effect(0.02, n, alpha=0.05 / family) for n in range(least, least + 30)
    ]
    assert all(0 < b < a < 0.3 for a, b in zip(effects, effects[1:], strict=False))


def test_pairs_for_is_the_smallest_that_resolves() -> None:
    n = signed_rank.pairs_for(0.05, 0.163)
    assert signed_rank.smallest_effect(0.163, n) <= 0.05 < signed_rank.smallest_effect(0.163, n - 1)
    assert signed_rank.pairs_for(0.5, 0.001) == 6
    assert signed_rank.pairs_for(0.5, 0.001, alpha=0.05 / 6) == 8  # 2 / 2^8 < 0.0083


def test_too_few_pairs_resolve_nothing() -> None:
    assert signed_rank.smallest_effect(0.01, 5) == math.inf


def _verdict(logs: list[float], **kw: float) -> stats.Verdict:
    return stats.verdict([math.exp(x) for x in logs], [1.0] * len(logs), **kw)  # type: ignore[arg-type]


def test_equivalent_wins_over_a_significant_trifle() -> None:
    found = _verdict([0.010 + 0.0001 * i for i in range(10)])
    assert found.interval.low > 1
    assert found.verdict == stats.EQUIVALENT
    assert found.pairs_needed == 0


def test_slower_and_faster() -> None:
    slow = [0.10 + 0.003 * i for i in range(10)]
    assert _verdict(slow).verdict == stats.SLOWER
    assert _verdict([-x for x in slow]).verdict == stats.FASTER


def test_the_margin_is_symmetric_in_ratio() -> None:
    # 1/(1+m) = 0.9709, not 1 - m: -0.0297 is inside 1/1.03 on the log scale's edge -0.02956
    assert _verdict([-0.0294] * 10).verdict == stats.EQUIVALENT
    assert _verdict([-0.0297] * 10).verdict == stats.FASTER
    assert _verdict([-0.0297] * 10, margin=0.05).verdict == stats.EQUIVALENT


def test_inconclusive_says_how_many_pairs_are_missing() -> None:
    logs = [0.3, -0.25, 0.1, -0.15, 0.22, -0.2, 0.05, 0.12, -0.08, 0.02]
    found = _verdict(logs)
    assert found.verdict == stats.INCONCLUSIVE
    assert found.pairs_needed > 0
    sd = float(np.std(logs, ddof=1))
    target = max(math.expm1(abs(math.log(found.ratio))), 0.03)
    assert signed_rank.smallest_effect(sd, found.pairs_needed + 10) <= target
    assert found.smallest_effect > target


def test_a_family_needs_more() -> None:
    # p = 0.02 or so: enough alone, not in a family of six
    logs = [0.10, 0.12, 0.08, 0.14, -0.02, 0.11, 0.09, -0.05, 0.13, 0.02]
    alone, family = _verdict(logs), _verdict(logs, family=6)
    assert alone.verdict == stats.SLOWER
    assert family.verdict == stats.INCONCLUSIVE
    assert family.interval == alone.interval
    assert family.simultaneous.low < alone.interval.low
    assert family.smallest_effect > alone.smallest_effect


def test_below_six_pairs_there_is_no_verdict() -> None:
    found = _verdict([0.5] * 5)
    assert found.verdict == stats.NO_VERDICT
    assert found.pairs_needed == 5
    assert "fewer than 6" in found.note
    assert stats.verdict([1.2], [1.0]).verdict == stats.NO_VERDICT


def test_six_to_nine_pairs_are_said() -> None:
    assert "fewer than the 10" in _verdict([0.5] * 7).note
    assert _verdict([0.5] * 10).note == ""


def test_a_simulated_a_against_a_is_wrong_as_often_as_stated() -> None:
    rng = np.random.default_rng(5)
    excluded = 0
    for _ in range(400):
        runs = np.exp(rng.normal(0, 0.05, (10, 2)))
        found = stats.paired_ratio(list(runs[:, 0]), list(runs[:, 1]))
        excluded += not found.low <= 1.0 <= found.high
    assert 0.02 <= excluded / 400 <= 0.08  # nominal 4.9 %: the attained level at ten pairs


def test_a_family_too_large_for_its_pairs_is_told() -> None:
    arm, base = [1.5 + 1e-3 * i for i in range(10)], [1.0] * 10
    assert stats.verdict(arm, base, family=25).verdict == stats.SLOWER
    many = stats.verdict(arm, base, family=26)
    assert many.verdict == stats.INCONCLUSIVE
    assert many.note == "26 judged together: no difference can be told below 11 pairs"
    assert many.pairs_needed == 1


def test_a_geometric_interval_has_no_limit_below_zero() -> None:
    found = stats.geometric_interval([1.0, 100.0])
    assert found.value == pytest.approx(10.0)
    assert 0 < found.low < 1
    turned = stats.geometric_interval([1.0, 0.01])
    assert turned.low == pytest.approx(1 / found.high)
    assert not stats.geometric_interval([2.0]).limited
    with pytest.raises(ValueError, match="positive"):
        stats.geometric_interval([])
