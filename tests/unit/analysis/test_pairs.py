"""What a pair compares: of arms in turns the whole loop, by one rule for both."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Optional, Sequence

import pytest

from iobench.analysis.pairs import Pair
from iobench.core.cases import Case, Trial
from iobench.core.records import Record, Slices, Steps
from tests.build import pairs as fixture

TURNS = Slices([(100.0, 120.0)], [0.0], [0.0])
#: When the batches of an arm came.  Made by two workers in turn, the first ends at 5 s, at 6 s the
#: other: 5.5 s of work; the window after a warm-up of two batches is 5 s.
CAME_S = (1.0, 1.0, 3.0, 3.0, 5.0, 6.0)


def record(case: Case, cache: str, slices: Optional[Slices], came_s: Sequence[float]) -> Record:
    found = fixture.record(Trial("t", case, "load", cache, contrast="c01", block=1))
    ready, ones = list(came_s), [1] * len(came_s)
    steps = Steps([0.0, *ready[:-1]], ready, ready, ones, ones, warmup=2, made_s=ready)
    ranks = (dataclasses.replace(found.ranks[0], steps=steps, began_s=100.0),)
    return dataclasses.replace(found, ranks=ranks, slices=slices)


def pair(
    arm: Dict[str, Any], base: Dict[str, Any], cache: str = "warm",
    slices: Optional[Slices] = TURNS,
) -> Pair:  # fmt: skip
    """Return a pair of arms with these keys; the base's batches take half of the time."""
    cases = [
        Case(**{"label": name, "loader": "torch", "format": "lmdb", **keys})
        for name, keys in (("arm", arm), ("base", base))
    ]
    halves = [t / 2 for t in CAME_S]
    times = zip(cases, (CAME_S, halves), strict=True)
    return Pair(1, 0, *(record(case, cache, slices, came_s) for case, came_s in times))


@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_workers_that_make_batches_in_turn_end_at_their_mean(cache: str) -> None:
    found = pair({}, {"runtime": "docker"}, cache)
    assert found.seconds_per_sample == pytest.approx((5.5 / 6, 2.75 / 6))
    assert found.tails == pytest.approx((0.5 / 5.5, 0.5 / 5.5))


@pytest.mark.parametrize(
    "keys",
    [
        {"loader": "threads"},
        {"workers": 3},
        {"prefetch": 3},
        {"batch": 16},
        {"loader_options": {"in_order": False}},
        {"loader": "plug-in-of-another-machine"},
    ],
    ids=lambda keys: " ".join(keys),
)
def test_arms_whose_batches_are_dealt_out_otherwise_both_end_with_the_last(
    keys: Dict[str, Any],
) -> None:
    """The tail of one would be left out, and not the other's."""
    for found in (pair(keys, {}), pair({}, keys)):
        assert found.seconds_per_sample == pytest.approx((6 / 6, 3 / 6))
        assert found.tails == (0.0, 0.0)


def test_arms_one_after_the_other_are_compared_over_the_steady_window() -> None:
    found = pair({}, {}, slices=None)
    assert found.seconds_per_sample == pytest.approx((5 / 4, 2.5 / 4))
