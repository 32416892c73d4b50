"""What a slowed network must cost by arithmetic, and when the targets are met."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import slowed_node
from benchmarks.slowed_node import TRUTHS, Figure
from iobench.equations.stats import Interval
from tests.build import slowed


def test_what_the_backward_pass_does_not_hide() -> None:
    bandwidth, latency, _ = TRUTHS
    wire_s = (4e6 * slowed.FRAME / slowed.PAYLOAD - slowed.BURST) / 20e6
    assert bandwidth.exposed_s() == pytest.approx(wire_s - 0.02), "20 ms of it are hidden"
    assert latency.exposed_s() == pytest.approx(0.08)
    relayed = dataclasses.replace(latency, round_trip_s=0.0412)
    assert relayed.exposed_s() == pytest.approx(0.0824), "the relay's own time with it"
    counted = dataclasses.replace(bandwidth, wire_bytes=4_034_000)
    wire_s = (4_034_000 - slowed.BURST) / 20e6
    assert counted.exposed_s() == pytest.approx(wire_s - 0.02)


def test_where_a_loop_outside_was_run_it_is_the_truth() -> None:
    interval = Interval(0.082, 0.081, 0.083, 0.95, 5, "t")
    assert Figure("x", 0.08, interval, 0.11).row()["covers"] is False
    outside = Figure("x", 0.08, interval, 0.11, outside=0.0815).row()
    assert (outside["covers"], outside["truth"], outside["expected"]) == (True, 0.0815, 0.08)


def test_the_truth_of_a_link_is_the_mean_of_all_repeats(tmp_path: Path) -> None:
    places = [tmp_path / "0", tmp_path / "1"]
    for place, outside_s in zip(places, (0.081, 0.083), strict=True):
        place.mkdir()
        (place / slowed_node.FACTS).write_text(json.dumps({"outside_s": outside_s}))
    _, latency, _ = TRUTHS
    assert slowed_node.known(latency, places).outside_s == pytest.approx(0.082)


def row(value: float, *wrong: str, half: float = 0.01) -> dict[str, Any]:
    interval = Interval(value, value - half, value + half, 0.95, 3, "t")
    return {"figures": [Figure("x", 1.0, interval, 2.0).row()], "wrong": list(wrong)}


@pytest.mark.parametrize(
    ("rows", "passed"),
    [
        ([row(1.005)] * 20, True),
        ([row(1.005)] * 17 + [row(1.2)] * 3, True),
        ([row(1.005)] * 16 + [row(1.02)] * 4, False),
        ([row(1.005, half=0.11)] * 20, False),
        ([row(1.005)] * 19 + [row(1.005, "a straggler")], False),
    ],
)
def test_targets(rows: list[dict[str, Any]], passed: bool) -> None:
    assert slowed_node.judged("x", rows)["passed"] is passed
