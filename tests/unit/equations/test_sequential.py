"""Alpha spent look by look: against published levels, against scipy, and by simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from iobench.equations import sequential, stats


def test_three_looks_have_the_published_boundaries() -> None:
    """Lan-DeMets with Pocock's shape, two-sided 0.05, equal steps: 2.279, 2.295, 2.296."""
    found = sequential.levels((10, 20, 30))
    z = [scipy_stats.norm.isf(level.differ / 2) for level in found]
    assert z == pytest.approx([2.279, 2.295, 2.296], abs=6e-4)


@pytest.mark.parametrize("planned", [(10, 20, 30), (6, 30), (10, 12, 40, 41), (10, 20)])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 8])
def test_all_looks_together_cost_alpha(planned: tuple[int, ...], alpha: float) -> None:
    found = sequential.levels(planned, alpha)
    cov = [[math.sqrt(min(a, b) / max(a, b)) for b in planned] for a in planned]
    normal = scipy_stats.multivariate_normal(cov=cov)
    z = np.array([scipy_stats.norm.isf(level.differ / 2) for level in found])
    assert 1 - normal.cdf(z, lower_limit=-z) == pytest.approx(alpha, abs=2e-4)
    one_sided = [scipy_stats.norm.isf(level.equal) for level in found]
    assert 1 - normal.cdf(one_sided) == pytest.approx(alpha, abs=2e-4)


@pytest.mark.parametrize("last", [13, 16, 19])
def test_a_last_look_that_time_brings_early_spends_what_is_left(last: int) -> None:
    """The first look keeps its level; both together still cost alpha."""
    planned, early = sequential.levels((12, 20)), sequential.levels((12, last), most=20)
    assert early[0] == pytest.approx(planned[0])
    assert early[1].differ > planned[1].differ
    root = math.sqrt(12 / last)
    normal = scipy_stats.multivariate_normal(cov=[[1.0, root], [root, 1.0]])
    z = np.array([scipy_stats.norm.isf(level.differ / 2) for level in early])
    assert 1 - normal.cdf(z, lower_limit=-z) == pytest.approx(0.05, abs=2e-4)


def test_the_first_look_spends_what_the_function_says() -> None:
    assert sequential.levels((10, 20, 30))[0].differ == pytest.approx(sequential.spent(1 / 3, 0.05))
    assert sequential.spent(1.0, 0.05) == pytest.approx(0.05)
    assert sequential.spent(0.0, 0.05) == 0.0


def test_one_look_is_the_plain_test() -> None:
    assert sequential.levels((10,), 0.05) == (sequential.Level(10, 0.05, 0.05),)
    rng = np.random.default_rng(1)
    arm, base = list(np.exp(rng.normal(0.01, 0.01, 10))), list(np.exp(rng.normal(0, 0.01, 10)))
    once = sequential.judge([(arm, base)], (10,), margin=0.03, family=4)
    assert once.verdict == stats.verdict(arm, base, margin=0.03, family=4)
    assert once.final


def test_ten_pairs_can_decide_only_because_the_shape_is_pococks() -> None:
    """The exact signed-rank test of ten pairs ends at 2 / 2^10."""
    assert sequential.levels((10, 20, 30))[0].differ > 2 / 2**10
    obrien = 2 * scipy_stats.norm.sf(scipy_stats.norm.isf(0.025) / math.sqrt(1 / 3))
    assert obrien < 2 / 2**10


@pytest.mark.parametrize("bad", [(), (10, 10), (20, 10), (0, 5)])
def test_looks_ascend(bad: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        sequential.levels(bad)


def judged(rng: np.random.Generator, effect: float, sd: float) -> tuple[str, int]:
    """Return (verdict, pairs used) of one comparison of up to 30 pairs."""
    arm = list(np.exp(rng.normal(math.log1p(effect), sd, 30)))
    base = [1.0] * 30
    at = [(arm[:n], base[:n]) for n in (10, 20, 30)]
    found = sequential.judge(at, (10, 20, 30), margin=0.03)
    return found.verdict.verdict, found.verdict.pairs


def test_looking_three_times_is_wrong_no_more_often_than_alpha() -> None:
    """sd 10 %: nothing is EQUIVALENT, so every look tests; without spending it were 11 %."""
    rng = np.random.default_rng(20)
    wrong = sum(judged(rng, 0.0, 0.10)[0] in (stats.FASTER, stats.SLOWER) for _ in range(1500))
    assert wrong / 1500 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 1500)
    assert wrong > 0.02 * 1500, "a test that never rejects would pass too"


def test_equivalent_at_the_margin_is_wrong_no_more_often_than_alpha() -> None:
    rng = np.random.default_rng(21)
    wrong = sum(judged(rng, 0.03, 0.02)[0] == stats.EQUIVALENT for _ in range(1000))
    assert wrong / 1000 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 1000)


def test_quiet_arms_end_at_the_first_look_and_real_effects_are_seen() -> None:
    rng = np.random.default_rng(22)
    same = [judged(rng, 0.0, 0.01) for _ in range(100)]
    assert sum(v == stats.EQUIVALENT for v, _ in same) > 95
    assert sum(n == 10 for _, n in same) > 90
    slower = [judged(rng, 0.05, 0.04)[0] for _ in range(200)]
    assert slower.count(stats.SLOWER) > 0.95 * 200


def test_the_verdict_is_that_of_the_first_look_that_decides() -> None:
    arm = [1.2, 1.21, 1.19, 1.2, 1.22, 1.2, 1.2, 1.21, 1.23, 1.2] + [0.8] * 20
    base = [1.0] * 30
    at = [(arm[:n], base[:n]) for n in (10, 20, 30)]
    for reached in (1, 2, 3):
        found = sequential.judge(at[:reached], (10, 20, 30), margin=0.03)
        assert (found.verdict.verdict, found.level.pairs) == (stats.SLOWER, 10)
        assert found.final


def test_undecided_before_the_last_look_is_not_final() -> None:
    arm = [x for x, _ in zip(itertools.cycle([0.7, 1.4]), range(30), strict=False)]
    at = [(arm[:n], [1.0] * n) for n in (10, 20, 30)]
    assert [sequential.judge(at[:k], (10, 20, 30), margin=0.03).final for k in (1, 2, 3)] == [
        False,
        False,
        True,
    ]
