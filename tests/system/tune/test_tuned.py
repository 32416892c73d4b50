"""Real runs: a job at its ceiling is left alone, and a dominated trial ends early."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.core.cases import Case, Trial
from iobench.plan.resolve import Here, resolve
from iobench.run import store
from iobench.run.suite import Suite
from iobench.run.trial import TrialSettings, run_trial
from iobench.spec import load
from iobench.tune.answer import LEAVE_IT, answer
from iobench.tune.begin import ceiling_text, current_of
from iobench.tune.settings import TuneSettings
from iobench.tune.tuning import Tuning
from tests.build import containers

pytestmark = pytest.mark.slow

STEP_S = 0.15


def test_a_job_at_its_ceiling_is_left_alone(tmp_path: Path) -> None:
    data = containers.small_dataset(tmp_path / "data", samples=32)
    spec = load.parse({
        "name": "fed", "compute_s": 0.5,
        "case": {"pipeline": "threads:jpeg", "trainer": "emulated", "batch": 4, "workers": 1,
                 "trainer_options": {"step_s": STEP_S}},
    })  # fmt: skip
    text = ceiling_text(current_of(spec), spec, "warm")
    plan = resolve(load.parse_text(text, "tune"), Here(data), 600.0, "now")
    asked = TuneSettings(minutes=10.0, cache="warm", current=plan.cases[0].label)
    found = store.create(tmp_path / "results", plan.name)
    found.save_plan(plan)
    tuning = Tuning(found.folder, asked)
    Suite(found, TrialSettings(compute_s=0.5), lambda *_: None, tuning.grow).run()
    result = answer(found.plan(), found.records(), asked)
    assert result.verdict == LEAVE_IT, result
    after = found.plan().trials  # so close to its ceiling, compute and training run once more
    assert after[: len(plan.trials)] == plan.trials
    assert [t.stage for t in after[len(plan.trials) :]] == ["compute", "train"]
    assert {t.case.label for t in after} == {asked.current}
    assert not (found.folder / "tune.journal").exists()


def test_a_dominated_trial_ends_early_and_is_valid(tmp_path: Path) -> None:
    data = containers.small_dataset(tmp_path / "data", samples=64)
    case = Case(loader="threads", location=data.root, batch=2, workers=1, samples=64, prefetch=1,
                trainer_options={"step_s": 0.01})  # fmt: skip
    whole, early = (
        run_trial(Trial("t", case, "train", "warm", least=least), data, 1, TrialSettings())
        for least in (1.0, 1e6)
    )
    assert (whole.status, early.status) == ("VALID", "VALID"), early.reasons
    assert len(whole.ranks[0].steps.done_s) == 32
    assert len(early.ranks[0].steps.done_s) < 16
    assert early.ranks[0].notes["ended_early"] is True
    assert whole.ranks[0].notes["ended_early"] is False
