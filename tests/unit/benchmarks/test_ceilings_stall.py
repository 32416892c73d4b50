"""The fetch stall that benchmarks/ceilings.py computes, on records made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import List

import pytest

from benchmarks import ceilings
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.records import VALID, CacheProof, RankResult, Record, Steps

RATE, SAMPLES = 1_000_000, 4
COLD_S, WARM_S = 0.4, 0.04


def train(cache: str, took_s: float, root: str) -> Record:
    steps = Steps([0.0], [0.0], [took_s], [SAMPLES], [0])
    case = Case(format="lmdb", location=root)
    proof = CacheProof(bytes_needed=1, bytes_storage=500_000 if cache == "cold" else 0)
    ranks = (RankResult(0, 1, "h", 1, steps),)
    return Record(Trial(cache, case, "train", cache), 1, VALID, (), "", 1.0, proof, ranks)


@pytest.fixture
def judged(tmp_path: Path) -> ceilings.StallRow:
    """0.5 MB on the device (122 pages) at 1 MB/s, of which 0.1 s are let through at once."""
    (tmp_path / "lmdb").mkdir()
    (tmp_path / "lmdb/data.mdb").write_bytes(bytes(122 * ceilings.PAGE - 1))
    data = Dataset(str(tmp_path), "d", SAMPLES, 1, 1, 1, "", "")
    records: List[Record] = [train("cold", COLD_S, data.root), train("warm", WARM_S, data.root)]
    stall = (COLD_S - WARM_S) / SAMPLES
    entry = {"fetch_stall_s": {"value": stall, "low": stall / 2, "high": 2 * stall}}
    return ceilings.stall_row("gluster", RATE, data, entry, records)


def test_a_stall_is_held_against_pages_by_rate_less_the_burst(judged: ceilings.StallRow) -> None:
    expected = (122 * 4096 / RATE - 0.1) / SAMPLES - WARM_S / SAMPLES
    assert judged.arithmetic == pytest.approx(expected)
    assert judged.warm == pytest.approx(WARM_S / SAMPLES)
    assert judged.of_arithmetic == pytest.approx(0.09 / expected)
    assert judged.reached
    assert "MISSED" not in ceilings._line(judged)


@pytest.mark.parametrize(("factor", "reached"), [(1.04, True), (1.06, False), (0.94, False)])
def test_five_per_cent_either_way(judged: ceilings.StallRow, factor: float, reached: bool) -> None:
    row = ceilings.StallRow(**{**vars(judged), "stall": factor * judged.arithmetic})
    assert row.reached is reached
    assert ("MISSED" in ceilings._line(row)) is not reached


def test_no_stall_is_not_reached(judged: ceilings.StallRow) -> None:
    assert not ceilings.StallRow(**{**vars(judged), "stall": -1.0, "arithmetic": -1.0}).reached
