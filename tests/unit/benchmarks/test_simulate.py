"""What the benchmarks aa and power draw: stretches keep their order, no effect is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import simulate
from benchmarks.aa import simulated


def test_stretches_are_consecutive_values_of_one_series() -> None:
    rng = np.random.default_rng(1)
    series = [np.arange(0.0, 60.0), np.arange(100.0, 160.0)]
    drawn = simulate.stretches(series, 60, 10, rng).reshape(6, 10)
    assert (np.diff(drawn, axis=1) == 1).all()
    with pytest.raises(ValueError, match="no recorded series"):
        simulate.stretches([np.zeros(5)], 60, 10, rng)


def test_arms_take_turns_in_a_drawn_order_and_its_reverse() -> None:
    rng = np.random.default_rng(2)
    ratios = simulate.pair_up(np.tile([0.0, 1.0], 30), rng)
    assert (ratios[::2] == -ratios[1::2]).all()
    assert {-1.0, 1.0} == set(ratios)


@pytest.mark.slow
def test_recorded_noise_with_drift_and_outliers_is_seldom_called_a_difference() -> None:
    rng = np.random.default_rng(3)
    recorded = {
        name: [simulate.synthetic(name, 0.3, 60, 0.05, rng) for _ in range(5)]
        for name in ("drift", "bursts")
    }
    found = simulated(recorded, 600, seed=4)["recorded"]
    assert found["draws"] == 600
    assert found["moved"] <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)


def test_a_real_effect_on_quiet_pairs_is_seen_at_the_first_look() -> None:
    rng = np.random.default_rng(5)
    found = simulate.verdicts(lambda: rng.normal(math.log(1.05), 0.01, 30), 100)
    assert found["verdicts"] == {"SLOWER": 1.0}
    assert found["mean_pairs"] == 10
