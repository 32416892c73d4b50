"""What the benchmarks aa and power draw: stretches keep their order, no effect is none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from benchmarks import simulate
from benchmarks.aa import excludes, judge, simulated


def test_stretches_are_consecutive_entries_of_one_series() -> None:
    rng = np.random.default_rng(1)
    series = [np.arange(0.0, 60.0), np.arange(100.0, 160.0)]
    drawn = simulate.stretches(series, 60, 10, rng).reshape(6, 10)
    assert (np.diff(drawn, axis=1) == 1).all()
    whole = simulate.stretches([s.reshape(-1, 2) for s in series], 12, 5, rng)
    assert whole.shape == (12, 2)
    assert (whole[:, 1] - whole[:, 0] == 1).all(), "blocks stay together"
    with pytest.raises(ValueError, match="no recorded series"):
        simulate.stretches([np.zeros(5)], 60, 10, rng)


def test_arms_are_put_to_runs_in_the_orders_that_the_product_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(2)
    ratios = simulate.pair_up(np.tile([0.0, 1.0], 30), rng)
    assert {-1.0, 1.0} == set(ratios)
    orders = [("arm", "base"), ("base", "arm"), ("base", "arm")]
    monkeypatch.setattr(simulate.blocks, "_orders", lambda *_: orders)
    assert simulate.signed(np.array([1.0, 2.0, 3.0]), rng).tolist() == [1.0, -2.0, -3.0]


@pytest.mark.breadth
def test_recorded_noise_with_drift_and_outliers_is_seldom_called_a_difference() -> None:
    rng = np.random.default_rng(3)
    recorded = {
        name: [simulate.synthetic(name, 0.3, 24, 0.05, rng).reshape(-1, 2) for _ in range(5)]
        for name in ("drift", "bursts")
    }
    found = simulated(recorded, 600, seed=4)["recorded"]
    assert found["draws"] == 600
    assert found["moved"] <= found["excluded"] <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)


def test_a_real_effect_on_quiet_pairs_is_seen_at_the_first_look() -> None:
    rng = np.random.default_rng(5)
    found = simulate.verdicts(lambda: rng.normal(math.log(1.05), 0.01, 30), 100)
    assert found["verdicts"] == {"SLOWER": 1.0}
    assert found["mean_pairs"] == 10


def test_the_comparisons_of_a_runtime_with_itself_are_judged_together() -> None:
    def row(ratio: float, verdict: str = "EQUIVALENT") -> dict[str, Any]:
        ratios = [ratio * (1 + 0.002 * (-1) ** i) for i in range(12)]
        interval = {"low": ratio - 0.003, "high": ratio + 0.003}
        return {"verdict": verdict, "ratios": ratios, "sd": 0.002,
                "excludes": excludes({"interval": interval})}  # fmt: skip

    quiet = [row(1.0)] * 35 + [row(1.01, "INCONCLUSIVE")] * 5
    result, met = judge(quiet)
    assert met
    assert (result["excluding"], result["equivalent"]) == (5, 35)
    assert result["pooled"]["pairs"] == 480
    assert not judge([*quiet[1:], row(0.99)])[1], "six intervals exclude 1"
    assert not judge([row(1.0)] * 31 + [row(1.0, "INCONCLUSIVE")] * 9)[1]
    assert not judge([row(1.005)] * 40)[1]
    assert judge(quiet[:4])[1], "fewer comparisons: their share"
