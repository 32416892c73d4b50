"""What the benchmarks of ceilings and of cached shares make of records, on known curves."""

from __future__ import annotations

from typing import List

import pytest

from benchmarks import cached_curve, ceilings
from iobench.core.cases import Case, Trial
from iobench.core.records import EXPLORATORY, VALID, CacheProof, RankResult, Record, Steps

NEEDED = 10_000_000


def read_at(share: str, rate: float, crossed: float, status: str = VALID) -> Record:
    cached = {"cold": 0.0, "warm": 1.0}.get(share) if share in ("cold", "warm") else float(share)
    steps = Steps([0.0], [0.0], [100 / rate], [100], [NEEDED])
    proof = CacheProof(
        resident_before=cached, bytes_needed=NEEDED, bytes_storage=int(crossed * NEEDED)
    )
    trial = Trial(share, Case(), "read", share)
    ranks = (RankResult(0, 1, "h", 1, steps),)
    return Record(trial, 1, status, ("odd",) if status != VALID else (), "", 1.0, proof, ranks)


def curve(**wrong: float) -> List[Record]:
    """Return 100 samples/s cold and 1000 warm, and what the equation says in between."""
    rates = {"cold": 100.0, "warm": 1000.0}
    out = []
    for share in cached_curve.SHARES:
        x = 0.0 if share in rates else float(share)
        rate = rates.get(share) or 1 / (x / 1000 + (1 - x) / 100)
        out.append(read_at(share, rate * wrong.get(share, 1.0), 0.0 if share == "warm" else 1 - x))
    return out


def test_a_curve_that_follows_the_equation_is_reached() -> None:
    found = cached_curve.rows(curve(), "resting")
    assert [row.resting for row in found] == pytest.approx([row.rate for row in found])
    assert [row.busy for row in found] == pytest.approx([100, 133.33, 200, 400, 1000, 1000], 1e-3)
    assert all(row.reached for row in found)
    busy = cached_curve.rows(curve(), "busy")
    assert [row.cached for row in busy if not row.reached] == [0.5, 0.75, 0.9]


def test_a_share_that_does_not_is_missed() -> None:
    found = cached_curve.rows(curve(**{"0.5": 0.9, "0.75": 1.4}), "resting")
    assert [row.cached for row in found if not row.reached] == [0.5, 0.75]


def test_more_bytes_than_were_not_cached_is_missed() -> None:
    records = [r for r in curve() if r.trial.cache != "0.9"]
    records.append(read_at("0.9", 1 / (0.9 / 1000 + 0.1 / 100), 0.2, EXPLORATORY))
    (row,) = (row for row in cached_curve.rows(records, "resting") if not row.reached)
    assert row.crossed == pytest.approx(2.0)
    assert row.note == "odd"


@pytest.mark.parametrize(
    ("of_throttle", "of_ceiling", "named", "reached"),
    [
        (0.99, 0.97, "bandwidth", True),
        (0.96, 0.97, "bandwidth", False),
        (0.99, 0.94, "bandwidth", False),
        (0.99, 0.97, "latency", False),
    ],
)
def test_a_throttle_is_reached_within_its_bounds(
    of_throttle: float, of_ceiling: float, named: str, reached: bool
) -> None:
    right = named == "bandwidth"
    row = ceilings.Row("disk", "20 MB/s", 1.0, of_throttle, 1.0, of_ceiling, named, right, "")
    assert row.reached is reached
