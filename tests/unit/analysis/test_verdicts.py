"""Verdicts from given pairs: what later pairs may change, and which blocks give a pair."""

from __future__ import annotations

from typing import Callable, List

from iobench.analysis.contrast_results import ContrastResult
from iobench.analysis.evidence import evidence
from iobench.analysis.verdicts import judge
from iobench.core.cases import Trial
from iobench.core.records import EXPLORATORY, FAILED, VALID, Record
from iobench.equations.stats import SLOWER
from tests.build import pairs as fixture

BARE, DOCKER = fixture.cases("bare", "docker")
SLOWED = 1.2


def judged(status: Callable[[int], str], *, upto: int, reverse: bool = False) -> ContrastResult:
    """Judge pairs that are all SLOWED, of looks at 10, 20 and 30; ``status``: of docker by block.

    ``reverse``: of the last block the arm that comes second ran before the first one.
    """
    contrast = fixture.contrast(DOCKER, BARE, looks=(10, 20, 30), pairs=30)
    plan = fixture.plan([BARE, DOCKER], [contrast], upto=upto)

    def record(trial: Trial) -> Record:
        arm = trial.arm == DOCKER.label
        wave = 1 + 0.01 * (trial.block % 3)
        seconds = 1e-3 * wave * (SLOWED if arm else 1.0)
        return fixture.record(trial, seconds, status=status(trial.block) if arm else VALID)

    records: List[Record] = [record(trial) for trial in plan.trials]
    if reverse:
        records[-2:] = records[:-3:-1]
    return judge(evidence(plan, records), contrast)


def test_a_final_verdict_is_not_taken_back_by_later_pairs() -> None:
    """Two of ten pairs lack their proof: they are left out.  Later most of 20 would lack it."""

    def lacks(block: int) -> str:
        return EXPLORATORY if block in (3, 7) or block > 10 else VALID

    first, later = (judged(lacks, upto=upto) for upto in (10, 20))
    assert (first.outcome.verdict, first.pairs, first.final) == (SLOWER, 8, True)
    assert later.outcome == first.outcome
    assert (later.pairs, later.look) == (first.pairs, first.look)
    proven_later = judged(lambda block: EXPLORATORY if block <= 6 else VALID, upto=20)
    assert proven_later.outcome.verdict == "EXPLORATORY", "most pairs of the first look lack it"


def test_a_look_without_a_pair_is_passed_over() -> None:
    found = judged(lambda block: FAILED if block <= 10 else VALID, upto=20)
    assert (found.outcome.verdict, found.pairs, found.look.taken) == (SLOWER, 10, 2)
    nothing = judged(lambda _: FAILED, upto=20)
    assert (nothing.pairs, nothing.final) == (0, False)


def test_arms_of_two_sessions_are_no_pair() -> None:
    """An interrupted resume leaves the first arm of a block newer than the second."""
    whole, split = (judged(lambda _: VALID, upto=10, reverse=r) for r in (False, True))
    assert (whole.pairs, split.pairs) == (10, 9)
