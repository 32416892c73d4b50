"""The model of a job as its parts, against what can be worked out by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest

from iobench.equations import pipeline
from iobench.equations.pipeline import Parts


@pytest.mark.parametrize(
    ("parts", "rate", "binding"),
    [
        (Parts(100, 200), 100, pipeline.COMPUTE),
        (Parts(100, 50), 50, pipeline.PREPARE),
        (Parts(100, 50, read=20), 20, pipeline.STORAGE),
        (Parts(100, 50, read=90, storage=20), 20, pipeline.STORAGE),
        (Parts(100, 50, read=20, turns=1.0), 1 / (1 / 50 + 1 / 20), pipeline.STORAGE),
        (Parts(100, 50, read=50, turns=1.0), 25, pipeline.STORAGE),
        (Parts(100, 200, cpu_s=0.03, step_cpu_s=0.01, cores=2), 50, pipeline.CPU),
        (Parts(100, 100, ahead=False), 50, pipeline.PREPARE),
    ],
)
def test_the_tightest_limit_is_the_rate(parts: Parts, rate: float, binding: str) -> None:
    assert parts.rate == pytest.approx(rate)
    assert parts.binding == binding


@pytest.mark.parametrize(("share", "found"), [(0.0, 0.0), (0.4, 0.4), (1.0, 1.0)])
def test_turns_are_found_again(share: float, found: float) -> None:
    together = Parts(math.inf, 300, read=120, turns=share).rate
    assert pipeline.turns(120, 300, together) == pytest.approx(found)
    assert pipeline.turns(120, 300, 500) == 0.0
    assert pipeline.turns(120, 300, 10) == 1.0


def test_more_workers_give_no_more_than_the_cores() -> None:
    parts = Parts(1e4, 300, cpu_s=0.002, cores=2)
    assert pipeline.scaled(parts, 2) == 600
    assert pipeline.scaled(parts, 8) == 1000
    assert pipeline.scaled(dataclasses.replace(parts, load=1200), 2) == 1200  # as measured
    assert pipeline.scaled(dataclasses.replace(parts, cpu_s=0.0), 8) == 2400
    assert pipeline.scaled(parts, 0.5) == 150


def test_a_cached_fraction_is_a_harmonic_mean() -> None:
    assert pipeline.mixed(4000.0, 500.0, 0.0) == pytest.approx(500)
    assert pipeline.mixed(4000.0, 500.0, 1.0) == pytest.approx(4000)
    assert pipeline.mixed(4000.0, 500.0, 0.5) == pytest.approx(1 / (0.5 / 4000 + 0.5 / 500))


def test_workers_are_useful_up_to_the_compute_and_the_cores() -> None:
    parts = pipeline.Parts(compute=1000.0, load=100.0, cpu_s=0.001, cores=4)
    assert pipeline.workers_useful(parts, 2) == 20  # 50 samples/s each, for 1,000
    assert pipeline.workers_useful(dataclasses.replace(parts, cpu_s=0.01), 2) == 8  # 400 on cores
    assert pipeline.workers_useful(dataclasses.replace(parts, cpu_s=0.0), 0) == 10
