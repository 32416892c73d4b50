"""The benchmark of scale, small: every figure is there, and the report is right."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks import scale


@pytest.mark.breadth
def test_it_is_right_and_small(tmp_path: Path) -> None:
    args = argparse.Namespace(channel=16, ranks=16, steps=200, folder=tmp_path)
    found, _ = scale.judge(args)
    whole = found["whole"]
    assert whole["complete"]
    assert whole["stragglers"] == [scale.STRAGGLER]
    assert whole["drive_bytes"] < scale.MOST_BYTES
    assert whole["report_bytes"] < scale.MOST_BYTES
    assert [c["ranks"] for c in found["channel"]] == [4, 16]
    assert not list(tmp_path.iterdir())
