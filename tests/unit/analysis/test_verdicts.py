"""Verdicts from given pairs: what later pairs may change, and which blocks give a pair."""

from __future__ import annotations

from typing import Callable, List

import pytest

from iobench.analysis.contrast_results import ContrastResult
from iobench.analysis.evidence import evidence
from iobench.analysis.verdicts import judged
from iobench.core.cases import Trial
from iobench.core.records import EXPLORATORY, FAILED, VALID, Record
from iobench.equations.stats import SLOWER
from tests.build import pairs as fixture

BARE, DOCKER = fixture.cases("bare", "docker")
SLOWED = 1.2
#: Pairs vary by some three fifths of it.
NOISY = 0.0575


def slowed(status: Callable[[int], str], *, upto: int, reverse: bool = False) -> ContrastResult:
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
    return judged(evidence(plan, records))[contrast.id]


def test_a_final_verdict_is_not_taken_back_by_later_pairs() -> None:
    """Two of ten pairs lack their proof: they are left out.  Later most of 20 would lack it."""

    def lacks(block: int) -> str:
        return EXPLORATORY if block in (3, 7) or block > 10 else VALID

    first, later = (slowed(lacks, upto=upto) for upto in (10, 20))
    assert (first.outcome.verdict, first.pairs, first.final) == (SLOWER, 8, True)
    assert later.outcome == first.outcome
    assert (later.pairs, later.look) == (first.pairs, first.look)
    proven_later = slowed(lambda block: EXPLORATORY if block <= 6 else VALID, upto=20)
    assert proven_later.outcome.verdict == "EXPLORATORY", "most pairs of the first look lack it"


def test_a_look_without_a_pair_is_passed_over() -> None:
    found = slowed(lambda block: FAILED if block <= 10 else VALID, upto=20)
    assert (found.outcome.verdict, found.pairs, found.look.taken) == (SLOWER, 10, 2)
    nothing = slowed(lambda _: FAILED, upto=20)
    assert (nothing.pairs, nothing.final) == (0, False)


def test_arms_of_two_sessions_are_no_pair() -> None:
    """An interrupted resume leaves the first arm of a block newer than the second."""
    whole, split = (slowed(lambda _: VALID, upto=10, reverse=r) for r in (False, True))
    assert (whole.pairs, split.pairs) == (10, 9)


@pytest.mark.parametrize(
    ("docker", "verdict"), [(VALID, "EQUIVALENT"), (EXPLORATORY, "INCONCLUSIVE")]
)
def test_what_is_equivalent_frees_its_share_of_the_family(docker: str, verdict: str) -> None:
    """The pairs of apptainer do for EQUIVALENT at 0.05, and not at 0.05 / 2."""
    bare, *arms = fixture.cases("bare", "docker", "apptainer")
    contrasts = [
        fixture.contrast(arm, bare, id=f"c{i}", group="g01", pairs=12) for i, arm in enumerate(arms)
    ]
    plan = fixture.plan([bare, *arms], contrasts)
    waves = {arms[0].label: 0.001, arms[1].label: NOISY}

    def record(trial: Trial) -> Record:
        wave = 1 + waves.get(trial.arm, 0.0) * ((trial.block * 7919) % 11 - 5) / 5
        unproven = trial.arm == arms[0].label and docker == EXPLORATORY
        return fixture.record(trial, 1e-3 * wave, status=EXPLORATORY if unproven else VALID)

    results = judged(evidence(plan, [record(trial) for trial in plan.trials]))
    found = results["c1"]
    assert found.outcome.verdict == verdict
    assert found.look.level == 0.05 / 2
    assert found.look.level_equal == (0.05 if verdict == "EQUIVALENT" else 0.05 / 2)
