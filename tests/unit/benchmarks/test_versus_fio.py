"""The benchmark against fio, small: its figures are of real bytes (no rate is asserted)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import versus_fio
from tests.capabilities import need

pytestmark = pytest.mark.breadth
#: Three repeats: pages of fio's own program that the kernel took back are read again now and then.
SMALL = ["--samples", "128", "--batch", "16", "--repeats", "3", "--rates", "200"]


@pytest.mark.parametrize("name", ["hdf5", "jpeg", "lmdb", "tar"])
def test_a_small_run_reads_what_fio_reads(name: str, tmp_path: Path) -> None:
    for capability in ("loop", "blkio", "fio", "torch", "lmdb"):
        need(capability)
    figures = tmp_path / "figures.json"
    status = versus_fio.main([*SMALL, "--formats", name, "--json", str(figures)])
    (row,) = json.loads(figures.read_text())
    assert status == (0 if row["reached"] else 1)
    assert (row["format"], row["limit_mb_s"], row["repeats"]) == (name, 200.0, 3)
    assert row["fio_mb_s"] > 0
    assert row["ratio"] == pytest.approx(row["read_mb_s"] / row["fio_mb_s"])
    assert abs(row["extra"]) < 0.1  # the same bytes left the device, to a tenth
    assert "too short" in row["note"]
    assert "not cold" not in row["note"]
