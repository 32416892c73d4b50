"""A real suite on the null pipeline: real processes, real records, no data and no framework."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iobench.analysis import disturbance
from iobench.core import dataset as datasets
from iobench.core.cases import Case, Dataset, Plan, Trial
from iobench.core.records import FAILED, INVALID, VALID, IoCounters, Record, Slices
from iobench.equations.sequential import levels
from iobench.equations.signed_rank import FLOOR_PAIRS, fewest_pairs
from iobench.equations.stats import ALPHA
from iobench.plan.blocks import first_look
from iobench.plan.contrasts import contrasts, without_limits
from iobench.plan.resolve import Here, resolve
from iobench.run import next_trials, store
from iobench.run import suite as scheduler
from iobench.run.ledger import Ledger
from iobench.run.trial import TrialSettings
from iobench.spec import load
from tests.build.datasets import indexed

DOCUMENT = {
    "name": "null",
    "compute_s": 0.05,
    "budget": "1m",
    "case": {"trainer": "null", "batch": 4, "workers": 0},
    "matrix": {"pipeline": ["null:null"], "prefetch": [1, 2]},
    "ladder": {"stages": ["read", "load", "compute", "train"], "repeats": 1},
    "contrasts": [{"over": "prefetch", "base": "fastest", "caches": ["warm"], "pairs": 2}],
}


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return indexed(tmp_path / "data", 32, digest=datasets.sample_digest(b""))


@pytest.fixture
def suite(tmp_path: Path, dataset: Dataset) -> scheduler.Suite:
    found = store.create(tmp_path / "results", "null")
    found.save_plan(planned(dataset, 60.0))
    return again(found)


def planned(dataset: Dataset, budget_s: float) -> Plan:
    return resolve(load.parse(DOCUMENT), Here(dataset), budget_s, "now")


def again(found: store.Store) -> scheduler.Suite:
    return scheduler.Suite(found, TrialSettings(compute_s=0.05), lambda *_: None)


def test_every_planned_trial_has_one_valid_record(suite: scheduler.Suite) -> None:
    suite.run()
    plan, records = suite.store.plan(), suite.store.records()
    assert plan.phase == 2
    assert [r.trial.id for r in records] == [t.id for t in plan.trials]
    assert {r.status for r in records} == {VALID}
    assert {r.attempt for r in records} == {1}
    contrast = [t for t in plan.trials if t.contrast]
    assert len(contrast) == 4
    assert {r.ranks[0].ids_digest for r in records if r.trial.stage == "load"} == {
        r.ranks[0].ids_digest for r in records if r.trial.stage == "train"
    }


def test_resume_runs_only_what_is_missing(suite: scheduler.Suite) -> None:
    suite.run()
    runs = suite.store.folder / "runs"
    kept = {p.name: p.read_bytes() for p in runs.glob("*.json")}
    victim = sorted(kept)[2]
    (runs / victim).unlink()
    again(suite.store).run()
    after = {p.name: p.read_bytes() for p in runs.glob("*.json")}
    assert {n: b for n, b in after.items() if n in kept} == {
        n: b for n, b in kept.items() if n != victim
    }
    assert set(after) - set(kept) == {victim.replace(".1.json", ".2.json")}


@pytest.mark.parametrize("done", [0, 3])
def test_an_attempt_that_a_kill_ended_is_run_again_under_its_next_number(
    suite: scheduler.Suite, done: int
) -> None:
    """What ``kill -9`` leaves: a line in the journal, at most a part of the record beside it."""
    full = again(suite.store)
    full.run()
    runs = suite.store.folder / "runs"
    trial = full.plan.trials[done].id
    for name in (t.id for t in full.plan.trials[done:]):
        (runs / f"{name}.1.json").unlink()
    (runs / f".{trial}.1.json.tmp").write_text('{"trial": {"id"')
    journal = suite.store.folder / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[: done + 1]))
    again(suite.store).run()
    plan, records = suite.store.plan(), suite.store.records()
    assert [r.trial.id for r in records] == [t.id for t in plan.trials]
    assert {(r.status, r.reasons) for r in records} == {(VALID, ())}
    assert {r.trial.id: r.attempt for r in records if r.attempt != 1} == {trial: 2}


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Trial, str], Trial]:
    """Return what gives a trial a loader whose making runs the statement."""

    def give(trial: Trial, statement: str) -> Trial:
        folder = tmp_path / "plugins" / "loaders"
        folder.mkdir(parents=True)
        (folder / "faulty.py").write_text(
            "import os, signal, time\n"
            "from iobench.core.members import LoaderBackend\n"
            f"def make(request):\n    {statement}\n"
            "BACKEND = LoaderBackend(make, 'has a fault')\n"
        )
        monkeypatch.setenv("IOBENCH_PLUGINS", str(tmp_path / "plugins"))
        return dataclasses.replace(trial, case=dataclasses.replace(trial.case, loader="faulty"))

    return give


def test_a_killed_worker_is_a_failed_record_and_the_suite_goes_on(
    suite: scheduler.Suite, faulty: Callable[[Trial, str], Trial]
) -> None:
    plan = suite.store.plan()
    first = plan.trials[0]
    trials = (faulty(first, "os.kill(os.getpid(), signal.SIGKILL)"), *plan.trials[1:])
    suite.store.save_plan(dataclasses.replace(plan, trials=trials))
    again(suite.store).run()
    records = {r.trial.id: r for r in suite.store.records()}
    failed = records.pop(first.id)
    assert failed.status == FAILED
    assert "SIGKILL" in failed.reasons[0]
    assert {r.status for r in records.values()} == {VALID}
    assert set(suite.store.done()) == set(records)


def test_an_error_in_the_worker_is_kept_with_its_words(
    suite: scheduler.Suite, faulty: Callable[[Trial, str], Trial]
) -> None:
    plan = suite.store.plan()
    only = faulty(plan.trials[0], "raise ValueError('the lens is dirty')")
    suite.store.save_plan(dataclasses.replace(plan, trials=(only,), phase=2))
    again(suite.store).run()
    record = suite.store.records()[0]
    assert record.status == FAILED
    assert "the lens is dirty" in record.reasons[0]


def test_an_invalid_trial_is_run_again_at_once_and_every_attempt_is_kept(
    suite: scheduler.Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = suite.store.plan().trials[:2]
    spoilt = {first.id: 1, second.id: 3}
    real = scheduler.run_trial

    def run_trial(trial: Trial, *rest: Any) -> Record:
        record = real(trial, *rest)
        left = spoilt.get(trial.id, 0)
        spoilt[trial.id] = left - 1
        return record if left <= 0 else dataclasses.replace(record, status=INVALID)

    monkeypatch.setattr(scheduler, "run_trial", run_trial)
    suite.run()
    seen = [(r.trial.id, r.attempt, r.status) for r in suite.store.records()]
    assert seen[:5] == [
        (first.id, 1, INVALID),
        (first.id, 2, VALID),
        (second.id, 1, INVALID),
        (second.id, 2, INVALID),
        (second.id, 3, INVALID),
    ]
    assert {status for _, _, status in seen[5:]} == {VALID}
    assert set(suite.store.done()) == {t.id for t in suite.store.plan().trials} - {second.id}


def test_the_time_limit_ends_a_trial_with_the_remedy(
    suite: scheduler.Suite, faulty: Callable[[Trial, str], Trial]
) -> None:
    plan = suite.store.plan()
    only = faulty(plan.trials[0], "time.sleep(60)")
    suite.store.save_plan(dataclasses.replace(plan, trials=(only,), phase=2))
    told: list[Record] = []
    found = scheduler.Suite(
        suite.store, TrialSettings(limit_s=1.0), lambda *_: None, ended=told.append
    )
    found.run()
    record = suite.store.records()[0]
    assert [(r.trial.id, r.status) for r in told] == [(only.id, FAILED)]
    assert record.status == FAILED
    assert "limit_s" in record.reasons[0]


def test_ctrl_c_keeps_what_is_done_and_leaves_no_worker(suite: scheduler.Suite) -> None:
    seen: list[Trial] = []

    def watch(done: int, total: int, left_s: float, trial: Trial | None) -> None:
        seen.extend([trial] if trial else [])
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    interrupted = scheduler.Suite(suite.store, TrialSettings(compute_s=0.05), watch)
    with pytest.raises(KeyboardInterrupt):
        interrupted.run()
    done = suite.store.records()
    assert [r.trial.id for r in done] == [t.id for t in seen[:2]]
    again(suite.store).run()
    attempts = {r.trial.id: r.attempt for r in suite.store.records()}
    assert len(attempts) == len(suite.store.plan().trials)
    assert {a for t, a in attempts.items() if t != seen[2].id} == {1}


def record(**io: float) -> Record:
    from tests.unit.run.test_store import record as stored

    made = stored()
    counters = IoCounters(wall_s=2.0, cpu_user_s=1.0, machine_busy_s=1.0)
    rank = dataclasses.replace(made.ranks[0], io=dataclasses.replace(counters, **io))
    return dataclasses.replace(made, ranks=(rank,))


def test_the_rule_for_repeating_a_pair() -> None:
    assert disturbance.disturbed(record()) == ""
    assert disturbance.disturbed(record(machine_busy_s=1.09)) == ""
    assert "rivals" in disturbance.disturbed(record(machine_busy_s=1.2))
    assert "stole" in disturbance.disturbed(record(machine_steal_s=0.05))
    invalid = dataclasses.replace(record(), status=INVALID, reasons=("not cold",))
    assert disturbance.disturbed(invalid) == "not cold"


def test_what_meets_all_arms_of_a_block_in_turns_repeats_none() -> None:
    turns = Slices([(0.0, 1.0)], [0.001], [0.0])
    for io in ({"machine_busy_s": 1.9}, {"machine_steal_s": 0.5}):
        assert disturbance.disturbed(record(**io))
        assert disturbance.disturbed(dataclasses.replace(record(**io), slices=turns)) == ""
    invalid = dataclasses.replace(record(), status=INVALID, reasons=("not cold",), slices=turns)
    assert disturbance.disturbed(invalid) == "not cold"
    beside = dataclasses.replace(record(), notes={"rivals": ["another"]}, slices=turns)
    assert "another iobench" in disturbance.disturbed(beside)


def test_a_disturbed_pair_is_repeated_once_and_both_are_kept(
    suite: scheduler.Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_trials, "disturbed", lambda record: "by the test")
    suite.run()
    trials = suite.store.plan().trials
    repeats = [t for t in trials if t.repeat_of]
    assert sorted({t.repeat_of for t in repeats}) == ["1", "2"]
    assert len(repeats) == 4, "two pairs at most, by max_repeated_pairs"
    first = {(t.block, t.arm): t.position for t in trials if t.contrast and not t.repeat_of}
    assert all(first[int(t.repeat_of), t.arm] == t.position for t in repeats)
    assert len(suite.store.done()) == len(trials)


def test_a_bigger_budget_buys_more_pairs(dataset: Dataset) -> None:
    plan = planned(dataset, 4000.0)
    trials = [Trial(c.label, c, "load", "-") for c in plan.cases]
    ledger = Ledger(plan, [dataclasses.replace(record(), trial=t, wall_s=10.0) for t in trials])
    (found,) = next_trials.within_budget(plan, contrasts(plan.rules, {}), ledger, 4000.0)
    assert found.pairs == 200
    (usual,) = next_trials.within_budget(
        planned(dataset, 60.0), contrasts(plan.rules, {}), ledger, 60.0
    )
    assert usual.pairs == 2
    looking = dataclasses.replace(found, pairs=20, looks=(12, 20))
    (last,) = next_trials.within_budget(plan, [looking], ledger, 4000.0)
    assert (last.pairs, last.looks) == (200, (12, 20, 200))


def test_what_a_net_takes_is_no_guess_of_another(suite: scheduler.Suite) -> None:
    plan = suite.store.plan()

    def cost_s(known: str, asked: str, stage: str) -> float:
        nets = {
            net: Case(label=net, trainer="torch", trainer_options={"net": net})
            for net in ("alexnet", "resnet50")
        }
        first = dataclasses.replace(
            record(), trial=Trial("1", nets[known], stage, "warm"), wall_s=9e9
        )
        return Ledger(plan, [first]).cost_s([Trial("2", nets[asked], stage, "warm", epochs=2)])

    assert cost_s("alexnet", "alexnet", "train") > 8e9
    assert cost_s("alexnet", "resnet50", "train") < 1e3
    assert cost_s("alexnet", "resnet50", "load") > 8e9


def test_what_a_contrast_of_few_pairs_does_not_need_is_the_others(dataset: Dataset) -> None:
    """Each pair costs 20 s: 3 of one and 12 of the other are 300 s."""
    plan = planned(dataset, 60.0)
    trials = [Trial(c.label, c, "load", "-") for c in plan.cases]
    ledger = Ledger(plan, [dataclasses.replace(record(), trial=t, wall_s=10.0) for t in trials])
    (one,) = contrasts(plan.rules, {})
    both = [dataclasses.replace(one, pairs=n, id=f"c{n}") for n in (3, 12)]

    def pairs(room_s: float, plan: Plan = plan) -> list[int]:
        return [c.pairs for c in next_trials.within_budget(plan, both, ledger, room_s)]

    assert pairs(301.0) == [3, 12]
    assert pairs(299.0) == [3, 11]
    assert pairs(1.0) == [3, 6]
    assert pairs(1.0, planned(dataset, 4000.0)) == [3, 6], "nor where more than usual was given"
    both[1] = dataclasses.replace(both[1], pairs=20, looks=(12, 20))
    assert pairs(301.0) == [3, 20]
    assert pairs(299.0) == [3, 20]
    (few,) = next_trials.within_budget(plan, both[1:], ledger, 200.0)
    assert (few.pairs, few.looks) == (20, (10, 20)), "the last look stays, for time that is left"
    assert next_trials.within_budget(plan, [], ledger, 200.0) == []


@pytest.mark.parametrize(
    ("compared", "looks", "fewest"),
    [(1, (), 6), (2, (), 7), (8, (), 9), (1, (12, 20), 7), (8, (12, 20), 10)],
)
def test_no_budget_is_so_tight_that_nothing_can_be_decided(
    dataset: Dataset, compared: int, looks: tuple[int, ...], fewest: int
) -> None:
    """Of so many comparisons at once fewer pairs have no limits, whatever they show; at a first of
    several looks too, which may err less.
    """
    plan = planned(dataset, 60.0)
    trials = [Trial(c.label, c, "load", "-") for c in plan.cases]
    ledger = Ledger(plan, [dataclasses.replace(record(), trial=t, wall_s=10.0) for t in trials])
    (one,) = contrasts(plan.rules, {})
    several = [
        dataclasses.replace(one, pairs=max(looks, default=12), looks=looks, id=f"c{n}")
        for n in range(compared)
    ]
    found = next_trials.within_budget(plan, several, ledger, 1.0)
    assert {first_look(c) for c in found} == {fewest}
    assert without_limits(found) == []
    level = levels((fewest, *looks[1:]), ALPHA / compared)[0].differ
    assert fewest == FLOOR_PAIRS or fewest_pairs(level) == fewest
    fewer = [dataclasses.replace(c, pairs=fewest - 1, looks=()) for c in found]
    assert compared == 1 or looks or without_limits(fewer)


@pytest.fixture
def failing(
    suite: scheduler.Suite, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Trial], bool]], list[Trial]]:
    """Return what has some trials of a suite fail: (trial -> whether it fails) -> those tried."""

    def having(fails: Callable[[Trial], bool]) -> list[Trial]:
        tried: list[Trial] = []

        def run(trial: Trial, dataset: Dataset, attempt: int, settings: TrialSettings) -> Record:
            tried.append(trial)
            found = dataclasses.replace(record(), trial=trial, attempt=attempt)
            return dataclasses.replace(found, status=FAILED) if fails(trial) else found

        monkeypatch.setattr(scheduler, "run_trial", run)
        return tried

    return having


def test_a_case_that_never_works_is_given_up(
    suite: scheduler.Suite, failing: Callable[[Callable[[Trial], bool]], list[Trial]]
) -> None:
    """Its first three stages fail: it, and what only it is compared with, are not started."""
    (broken, other) = suite.plan.cases
    tried = failing(lambda trial: trial.case.label == broken.label)
    suite.run()
    of = {c.label: [t for t in tried if t.case.label == c.label] for c in (broken, other)}
    assert len(of[broken.label]) == 3
    assert not [t for t in of[other.label] if t.contrast]
    records = {r.trial.id: r for r in suite.store.records()}
    assert set(records) == {t.id for t in suite.store.plan().trials}
    given_up = [r for r in records.values() if r.reasons and "not started: " in r.reasons[0]]
    assert {r.status for r in given_up} == {FAILED}
    assert len(tried) + len(given_up) == len(records)
    tried.clear()
    failing(lambda trial: False)
    again(suite.store).run()
    assert set(suite.store.done()) == {t.id for t in suite.store.plan().trials}, "all of it"


def test_a_stage_that_never_works_is_given_up_and_the_others_run(
    suite: scheduler.Suite, failing: Callable[[Callable[[Trial], bool]], list[Trial]]
) -> None:
    plan = suite.plan
    arm = plan.cases[0].label
    (one,) = contrasts(plan.rules, {})
    trials = [Trial(f"{n}", case, "load", "warm", one.id, case.label, block=n, position=i)
              for n in range(1, 7) for i, case in enumerate(plan.cases)]  # fmt: skip
    suite.store.save_plan(dataclasses.replace(
        plan, trials=tuple(dataclasses.replace(t, id=f"{i}") for i, t in enumerate(trials)),
        contrasts=(one,), phase=2,
    ))  # fmt: skip
    tried = failing(lambda trial: trial.case.label == arm)
    again(suite.store).run()
    assert [t.block for t in tried if t.case.label == arm] == [1, 2, 3]
    assert [t.block for t in tried if t.case.label != arm] == [1, 2], "in the third it came first"


def test_a_failing_trial_is_tried_once_a_run(
    suite: scheduler.Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def fail(trial: Trial, dataset: Dataset, attempt: int, settings: TrialSettings) -> Record:
        tried.append(trial.id)
        return dataclasses.replace(record(), trial=trial, attempt=attempt, status=FAILED)

    monkeypatch.setattr(scheduler, "run_trial", fail)
    suite.run()
    assert len(tried) == len(set(tried))
    again(suite.store).run()
    assert len(tried) == 2 * len(set(tried)), "a resume tries each once more"
