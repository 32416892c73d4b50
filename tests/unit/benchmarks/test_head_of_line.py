"""The benchmark of head-of-line loss runs from end to end; its figures need a quiet machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import head_of_line


@pytest.mark.breadth
def test_a_short_run_has_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOBENCH_PLUGINS", "")  # it sets its own
    figures = tmp_path / "figures.json"
    words = ["--data", str(tmp_path), "--json", str(figures), "--repeats", "2", "--samples", "100"]
    monkeypatch.setattr("sys.argv", ["head_of_line", *words])
    head_of_line.main()
    rows = json.loads(figures.read_text())
    assert set(rows) == {
        "loss of the arms, us a sample",
        "loss reported, us a sample",
        "gain of in_order = false",
    }
    assert all(expected > 0 for _, expected in rows.values())
