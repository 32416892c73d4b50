"""How long a suite took and how much of it was in loops: attempts of known readings."""

from __future__ import annotations

import dataclasses
from typing import Optional

import pytest

from iobench.analysis.evidence import trial_window
from iobench.analysis.time_spent import PAUSE_S, time_spent
from iobench.core.records import Record, Slices
from tests.build import report as fixture

LOAD = next(r for r in fixture.suite()[1] if r.trial.stage == "load")


def attempt(at_s: int, wall_s: float, slices: Optional[Slices] = None) -> Record:
    started = f"2026-01-01T00:{at_s // 60:02d}:{at_s % 60:02d}+00:00"
    return dataclasses.replace(LOAD, started=started, wall_s=wall_s, slices=slices, ranks=())


def test_arms_that_take_turns_are_counted_once_and_a_pause_is_none_of_it() -> None:
    turns = Slices([(100.0, 102.0), (104.0, 105.0)], [0.0] * 2, [0.0] * 2)
    others = Slices([(102.0, 104.0)], [0.0], [0.0])
    resumed_at = 10 + int(PAUSE_S) + 5
    found = time_spent(
        [attempt(resumed_at, 20.0), attempt(0, 10.0, turns), attempt(2, 6.0, others)]
    )
    assert (found.suite_s, found.loops_s) == (30.0, 5.0)


def test_what_ran_at_once_lasts_as_long_as_its_shares_together() -> None:
    """Five arms of 20 s each: the next attempt begins after 100 s, which is no pause."""
    block = [dataclasses.replace(attempt(0, 20.0), at_once=5) for _ in range(5)]
    assert time_spent([*block, attempt(100, 10.0)]).suite_s == 110.0
    assert time_spent(block).suite_s == 100.0


def test_time_between_trials_is_of_the_suite() -> None:
    assert time_spent([attempt(0, 4.0), attempt(14, 6.0)]).suite_s == 20.0


def test_an_uninterrupted_loop_counts_as_its_window() -> None:
    window = trial_window(LOAD)
    assert window
    assert time_spent([LOAD]).loops_s == pytest.approx(window.wall_s)
    assert time_spent([]).suite_s == 0
