"""Where second passes fall to the rate of the first."""

from __future__ import annotations

import math
from typing import List, Optional, Sequence

import pytest

from iobench.equations.servers_cache import Knee, Reread, bracket, kept, knee, rates, size

MB = 1_000_000
SIZES = [8 * MB << i for i in range(5)]  # to 128 MB


def sweep(shares: Sequence[float], storage: float = 100e6, memory: float = 900e6) -> List[Reread]:
    """Return sets of which these shares came from memory the second time."""
    return [
        Reread(n, storage, 1 / (share / memory + (1 - share) / storage))
        for n, share in zip(SIZES, shares)
    ]


@pytest.mark.parametrize(
    ("shares", "low", "high"),
    [
        ((1, 1, 1, 0, 0), 32 * MB, 120 * MB),
        ((1, 1, 1, 0.3, 0.1), 32 * MB, 120 * MB),
        ((1, 1, 1, 0.6, 0.2), 38 * MB, 248 * MB),  # partly kept: so much at least
        ((1, 1, 0, 0, 0), 16 * MB, 56 * MB),
        ((1, 0.2, 1, 0, 0), 32 * MB, 120 * MB),  # one pass was disturbed
        ((1, 1, 1, 1, 1), 128 * MB, None),
    ],
)
def test_the_knee_is_between_what_was_kept_and_what_was_not(
    shares: Sequence[float], low: int, high: Optional[int]
) -> None:
    found = knee(sweep(shares))
    assert found is not None
    assert found.low == pytest.approx(low, rel=0.02)
    assert found.high == high


def test_the_order_of_the_sets_does_not_matter() -> None:
    sets = sweep((1, 1, 0, 0, 0))
    assert knee(sets[::-1]) == knee(sets)


@pytest.mark.parametrize("again", [0.5, 1.0, 1.4])
def test_no_knee_where_no_second_pass_is_faster(again: float) -> None:
    assert knee([Reread(n, 100e6, again * 100e6) for n in SIZES]) is None
    assert knee([]) is None
    assert knee(sweep((1, 0, 0, 0, 0))) is None, "one of them may be chance"


def test_shares_are_of_the_time_of_a_byte() -> None:
    (half,) = sweep((0.5,))
    assert kept(half, 100e6, 900e6) == pytest.approx(0.5)
    assert kept(Reread(MB, 100e6, 90e6), 100e6, 900e6) == 0.0
    assert kept(Reread(MB, 100e6, 950e6), 100e6, 900e6) == 1.0


def test_a_first_pass_may_have_come_from_memory_as_well() -> None:
    """The largest set was read before all others, and is there still where all of it fits."""
    sets = sweep((1, 1, 1, 1, 1))
    sets[-1] = Reread(SIZES[-1], 880e6, 900e6)
    assert rates(sets) == pytest.approx((100e6, 900e6))
    assert knee(sets) == Knee(128 * MB, None)


def test_rates_that_only_vary_show_no_knee() -> None:
    """All of it came from memory, both times, on a machine with other work."""
    rates_mb = ((170, 80), (307, 160), (266, 129), (148, 408), (269, 150))
    pairs = zip(SIZES, rates_mb)
    assert knee([Reread(n, 1e6 * first, 1e6 * again) for n, (first, again) in pairs]) is None


def test_a_slow_first_pass_moves_no_knee() -> None:
    sets = sweep((1, 1, 0, 0, 0))
    sets[3] = Reread(SIZES[3], 40e6, 100e6)
    assert knee(sets) == Knee(16 * MB, 56 * MB)


def test_sweeps_are_bracketed_together() -> None:
    assert bracket([Knee(30, 64), Knee(28, 128)]) == Knee(28, 128)
    assert bracket([Knee(30, 64), Knee(64, None)]) == Knee(30, None)
    assert bracket([]) is None


@pytest.mark.parametrize(
    ("stated", "found", "nbytes"),
    [
        (0, None, None),
        (64, None, 64),
        (0, Knee(16, 32), 32),
        (64, Knee(16, 32), 64),
        (24, Knee(16, 32), 32),
        (0, Knee(16, None), math.inf),
        (64, Knee(16, None), 64),
        (8, Knee(16, 32), 32),  # it holds more than was stated
        (8, Knee(16, None), math.inf),
    ],
)
def test_a_cache_is_taken_for_the_largest_that_it_can_be(
    stated: int, found: Optional[Knee], nbytes: Optional[float]
) -> None:
    assert size(stated, found) == nbytes
