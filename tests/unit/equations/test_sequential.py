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


@pytest.mark.slow
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


def looks_of(
    ratio: float, sd: float, *, seed: int = 1, when: tuple[int, ...] = (0,), proven: bool = True
) -> sequential.Looks:
    """Return a comparison of 12 and 20 pairs, whose looks were reached at these moments."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 1, 20)
    logs = math.log(ratio) + sd * (noise - noise[:12].mean()) / noise[:12].std(ddof=1)
    arm, base = list(np.exp(logs)), [1.0] * 20
    reached = [
        sequential.Look(at, arm[:n], base[:n], proven)
        for n, at in zip((12, 20), when, strict=False)
    ]
    return sequential.Looks((12, 20), reached, 0.03, 20)


def verdicts(family: int, found: list[sequential.Looks]) -> list[str]:
    return [one.verdict.verdict if one else "" for one in sequential.decide(family, found)]


#: sd of pairs that are EQUIVALENT at 0.05 / 2 but not at 0.05 / 3.
BORDERLINE = 0.0425


def test_what_is_equivalent_frees_its_share_for_the_others() -> None:
    sure, open_ = looks_of(1.0, 0.005), looks_of(1.0, BORDERLINE, seed=2)
    assert [verdicts(n, [open_]) for n in (2, 3)] == [["EQUIVALENT"], ["INCONCLUSIVE"]]
    assert verdicts(3, [open_, looks_of(1.2, 0.005)]) == ["INCONCLUSIVE", "SLOWER"]
    assert verdicts(3, [open_, sure, sure]) == ["EQUIVALENT"] * 3
    withheld = looks_of(1.0, 0.005, proven=False)
    assert verdicts(3, [open_, withheld, withheld]) == ["INCONCLUSIVE", *["EQUIVALENT"] * 2]
    freed = sequential.decide(3, [open_, sure, sure])[0]
    assert freed is not None
    assert freed.level.equal == sequential.levels((12, 20), 0.05 / 2)[0].equal
    assert freed.level.differ == sequential.levels((12, 20), 0.05 / 3)[0].differ


def test_no_decision_is_taken_back() -> None:
    """One is EQUIVALENT by a share that was freed before its second look, or SLOWER before that."""
    sure = [looks_of(1.0, 0.005, when=(5,))] * 2
    first = looks_of(1.0, BORDERLINE, seed=2, when=(0, 9))
    slower = first._replace(
        reached=[first.reached[0], first.reached[1]._replace(arm=[1.2] * 10 + [1.21] * 10)]
    )
    found = sequential.decide(3, [slower, *sure])[0]
    assert found is not None
    assert (found.verdict.verdict, found.level.pairs, found.final) == ("EQUIVALENT", 12, True)
    early = slower._replace(
        reached=[look._replace(when=at) for look, at in zip(slower.reached, (0, 1), strict=True)]
    )
    found = sequential.decide(3, [early, *sure])[0]
    assert found is not None
    assert (found.verdict.verdict, found.level.pairs) == ("SLOWER", 20)


@pytest.mark.parametrize(("ratio", "wrong"), [(1.03, {"EQUIVALENT"}), (1.0, {"FASTER", "SLOWER"})])
@pytest.mark.parametrize("sd", [0.004, 0.02])
def test_a_family_is_wrong_in_one_of_twenty_at_most(
    ratio: float, wrong: set[str], sd: float
) -> None:
    """Eight comparisons; also where four of them are what frees the others' share."""
    rng, runs = np.random.default_rng(7), 300
    failed = 0
    for _ in range(runs):
        found = []
        for k in range(8):
            true = ratio if k < 4 else 1.0
            arm = list(np.exp(rng.normal(math.log(true), sd, 20)))
            reached = [sequential.Look(n, arm[:n], [1.0] * n) for n in (12, 20)]
            found.append(sequential.Looks((12, 20), reached, 0.03, 20))
        failed += any(v in wrong for v in verdicts(8, found)[:4])
    assert failed / runs <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / runs)
