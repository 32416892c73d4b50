"""The rate of an arm in each round counts its steps by the time that it ran."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import slices
from tests.unit.run.test_store import record


def arm(step_s: float, thawed: list[tuple[float, float]]) -> Any:
    """Return an arm whose steps last so long, on a clock that stands still while it is stopped."""
    ran = [begun + k * 1e-3 for begun, end in thawed for k in range(round(1e3 * (end - begun)))]
    every = round(1e3 * step_s)
    done = [t - thawed[0][0] for t in ran[every::every]]
    rank = record().ranks[0]
    steps = dataclasses.replace(
        rank.steps, request_s=[0.0, *done[:-1]], ready_s=done, done_s=done,
        samples=[1] * len(done), bytes=[0] * len(done), warmup=0,
    )  # fmt: skip
    rank = dataclasses.replace(rank, steps=steps, began_s=thawed[0][0])
    nothing = [0.0] * len(thawed)
    return SimpleNamespace(
        attempt=SimpleNamespace(ranks=(rank,)), thawed=thawed, stop_s=nothing, thaw_s=nothing
    )


def test_steps_are_counted_by_the_time_that_the_arm_ran() -> None:
    whole = arm(0.01, [(10.0 + 7 * k, 12.0 + 7 * k) for k in range(4)])
    sliced = arm(0.02, [(12.0 + 0.3 * k, 12.1 + 0.3 * k) for k in range(80)])
    assert slices.rates(whole, 3, 1) == pytest.approx([100.0] * 3, rel=0.02)
    assert slices.rates(sliced, 3, 20) == pytest.approx([50.0] * 3, rel=0.02)


@pytest.mark.parametrize(("apart", "expected"), [(0.0, True), (0.004, False), (0.03, False)])
def test_arms_on_copies_must_give_the_ratio_of_arms_on_the_same_files(
    apart: float, expected: bool
) -> None:
    wave = [0.002, -0.002] * 12
    rows = [(w, apart - w, 0.05) for w in wave]
    assert slices.agrees(rows) is expected
    assert not slices.agrees([(10 * w, -10 * w, 0.0) for w in wave]), "too few to tell"
