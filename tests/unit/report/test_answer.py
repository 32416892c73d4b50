"""The answer first: what each arm costs, what stayed open and why."""

from __future__ import annotations

import dataclasses
import math

import pytest

from iobench.analysis import verdicts
from iobench.analysis.contrast_results import AllocationResult, ContrastResult
from iobench.analysis.evidence import evidence
from iobench.report import answer, contrast_words
from tests.build import pairs as fixture

BARE, DOCKER, APPTAINER = fixture.cases("bare", "docker", "apptainer")


def judged(noise: float, slower: float = 1.0, **changes: object) -> list[ContrastResult]:
    """Return two contrasts of ten pairs: docker ``slower`` by this factor, both with this noise."""
    contrasts = [
        fixture.contrast(DOCKER, BARE, group="g01", **changes),
        fixture.contrast(APPTAINER, BARE, group="g01", id="c02", **changes),
    ]
    plan = fixture.plan([BARE, DOCKER, APPTAINER], contrasts)
    records = []
    for trial in plan.trials:
        wave = noise * ((trial.block * 7919) % 11 - 5) / 5 if trial.arm != BARE.label else 0.0
        ready = {DOCKER.label: 1.2, APPTAINER.label: 1.9, BARE.label: 1.0}[trial.arm]
        factor = slower if trial.arm == DOCKER.label else 1.0
        records.append(fixture.record(trial, 1e-3 * factor * (1 + wave), ready_s=ready))
    return [*verdicts.judged(evidence(plan, records)).values()]


def test_arms_that_cost_nothing_are_one_sentence() -> None:
    assert answer.sentences(judged(0.001)) == [
        "docker and apptainer are within 3 % of bare, in 1 comparison each; start-up +0.2 and +0.9"
        " s."
    ]


def test_start_up_of_one_node_and_of_two_is_not_one_number() -> None:
    one = judged(0.001)
    added = [dataclasses.replace(c.startup_s, value=c.startup_s.value + 1) for c in one]
    place = AllocationResult("7", ("h1", "h2"), pairs=10, ratio=1.0)
    two = [
        dataclasses.replace(c, startup_s=more, allocations=[place])
        for c, more in zip(one, added, strict=True)
    ]
    (line,) = answer.sentences([*one, *two])
    assert line.endswith("start-up +0.2 and +0.9 s on 1 node, +1.2 and +1.9 s on 2 nodes.")
    (line,) = answer.sentences([*one, two[0]])
    assert line.endswith("start-up +0.2 and +0.9 s on 1 node.")


def test_one_that_costs_and_one_that_does_not() -> None:
    equal, slow = answer.sentences(judged(0.001, slower=1.1))
    assert equal.startswith("apptainer is within 3 % of bare, in 1 comparison;")
    assert slow.startswith("docker against bare: SLOWER in torch:lmdb load cold (time ratio 1.10")
    assert slow.endswith("Start-up +0.2 s.")


@pytest.mark.parametrize(("low", "high"), [(0.99, 1.032), (0.968, 1.01), (0.0, math.inf)])
def test_equal_arms_whose_wider_interval_passes_the_margin(low: float, high: float) -> None:
    equal = judged(0.001)[0]
    outcome = equal.outcome
    assert outcome.verdict == "EQUIVALENT"
    assert outcome.simultaneous
    assert "at 90 %" not in contrast_words.sentence(equal)
    wide = dataclasses.replace(outcome.simultaneous, low=low, high=high)
    narrow = dataclasses.replace(outcome.simultaneous, low=0.984, high=1.028)
    changed = dataclasses.replace(outcome, simultaneous=wide, simultaneous90=narrow)
    passing = dataclasses.replace(equal, outcome=changed)
    assert "EQUIVALENT within 3 % (at 90 %: 0.984 to 1.028);" in contrast_words.sentence(passing)
    assert contrast_words.outcome(passing).endswith("at 90 %: 0.984 to 1.028)")


def test_what_is_open_says_why() -> None:
    (docker, apptainer) = answer.sentences(judged(0.2))
    for line in (docker, apptainer):
        assert "not decided in torch:lmdb load cold (pairs vary by 1" in line
        assert "could be seen, about " in line
        assert " more pairs needed)" in line


def test_more_pairs_are_told_in_time() -> None:
    contrast = dataclasses.replace(judged(0.2)[0], block_s=12.0, causes=("too few cores",))
    needed = contrast.outcome.pairs_needed
    assert needed
    assert f"{needed} more pairs needed ({round(needed / 5)} min)" in contrast_words.needed(
        contrast
    )
    assert "min); too few cores)" in answer.sentences([contrast])[0]


@pytest.mark.parametrize("primary", [True, False])
def test_only_primary_contrasts_answer(primary: bool) -> None:
    found = [dataclasses.replace(c, primary=primary) for c in judged(0.001)]
    assert bool(answer.sentences(found)) == primary


def test_without_a_pair_the_note_is_the_reason() -> None:
    found = judged(0.001)
    empty = [dataclasses.replace(c, outcome=dataclasses.replace(c.outcome, verdict="EXPLORATORY",
                                 note="3 pairs are too few")) for c in found]  # fmt: skip
    assert "not decided in torch:lmdb load cold (3 pairs are too few)" in answer.sentences(empty)[0]
