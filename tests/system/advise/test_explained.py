"""Real runs with a cause planted by what the product offers, strengths drawn: the cause is named.

`benchmarks/explain.py` does the same with more causes, a throttled mount among them.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Dict, List

import pytest

from benchmarks.suites import dataset, run
from iobench.advise.explain import advise
from iobench.advise.findings import NOTHING, Finding
from iobench.advise.predict import predict
from iobench.analysis.results import SuiteResult
from iobench.analysis.suite import analyse
from iobench.run import store
from iobench.run.trial import TrialSettings

pytestmark = pytest.mark.slow

#: Samples/s of the steps in all of these: two workers prepare several times as many.
BATCH, STEP_S = 8, 0.08


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def measured(tmp_path: Path, data: Path, delay_s: float, **case: Any) -> SuiteResult:
    """Run a small suite; return its analysis."""
    document: Dict[str, Any] = {
        "name": "planted", "budget": "5m", "compute_s": 0.3,
        "case": {
            "trainer": "emulated", "trainer_options": {"step_s": STEP_S}, "batch": BATCH,
            "samples": 128, "workers": 2, **case,
        },
        "matrix": {"pipeline": ["threads:jpeg"]},
        "ladder": {
            "stages": ["load", "compute", "train"], "repeats": 1, "digest": False, "probe": False,
        },
    }  # fmt: skip
    settings = TrialSettings(compute_s=0.3, decode_delay_s=delay_s)
    found = dataset(data, "smoke", 128, [])
    run(document, found, results=tmp_path, settings=settings, quiet=True)
    kept = store.find(tmp_path)
    return analyse(kept.plan(), kept.records())


def causes(suite: SuiteResult) -> List[Finding]:
    return [f for f in advise(suite) if f.cause != NOTHING]


def test_too_few_workers_are_named_and_more_of_them_foretold(tmp_path: Path, data: Path) -> None:
    strength = random.SystemRandom().uniform(2, 3)
    suite = measured(tmp_path, data, strength * STEP_S / BATCH, workers=1)
    first = causes(suite)[0]
    assert first.cause == "workers", (strength, [f.text for f in causes(suite)])
    assert first.gain is not None
    assert first.gain.value > 1.5
    two = [p for p in predict(suite, ["workers=2"]) if p.cache == "warm"]
    assert [p.before for p in two] == ["preparing"]
    assert two[0].gain.value > 1.5


def test_nobody_preparing_ahead_is_named(tmp_path: Path, data: Path) -> None:
    strength = random.SystemRandom().uniform(0.5, 0.9)
    suite = measured(tmp_path, data, strength * STEP_S / BATCH, workers=0)
    first = causes(suite)[0]
    assert first.cause == "no overlap", (strength, [f.text for f in causes(suite)])
    assert "set workers to" in first.remedy


def test_a_healthy_run_has_nothing_to_cure(tmp_path: Path, data: Path) -> None:
    suite = measured(tmp_path, data, 0.0, trainer_options={"step_s": 2 * STEP_S})
    assert [f.text for f in causes(suite) if f.gain] == []
    assert [f for f in advise(suite) if f.cause == NOTHING]
