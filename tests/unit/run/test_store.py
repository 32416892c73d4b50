"""Results survive what happens to them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest

from iobench.core.cases import Case, Dataset, Plan, Trial
from iobench.core.errors import ResultsError
from iobench.core.records import (
    FAILED,
    VALID,
    CacheProof,
    IoCounters,
    RankResult,
    Record,
    Startup,
    Steps,
)
from iobench.run import store


def record(trial: str = "0001-x", attempt: int = 1, status: str = VALID) -> Record:
    steps = Steps((0.0, 1.0), (0.5, 1.5), (1.0, 2.0), (4, 4), (40, 40), warmup=1)
    rank = RankResult(0, 1, "n1", 7, steps, Startup(), IoCounters())
    return Record(
        trial=Trial(id=trial, case=Case(), stage="load", cache="warm"),
        attempt=attempt,
        status=status,
        reasons=(),
        started="2026-01-01T00:00:00Z",
        wall_s=2.0,
        cache=CacheProof(),
        ranks=(rank,),
    )


def plan(*trials: str) -> Plan:
    return Plan(
        name="x",
        created="2026-01-01",
        seed=1,
        budget_s=60,
        dataset=Dataset("/d", "d", 8, 80, 2, 1, "00", "smoke"),
        cases=(Case(),),
        trials=tuple(Trial(id=t, case=Case(), stage="load", cache="warm") for t in trials),
    )


def test_round_trip(tmp_path: Path) -> None:
    suite = store.create(tmp_path, "x")
    suite.save_plan(plan("0001-x"))
    suite.save(record())
    assert suite.plan() == plan("0001-x")
    assert suite.records()[0].trial.id == "0001-x"
    assert list(suite.records()[0].ranks[0].steps.done_s) == [1.0, 2.0]
    assert store.find(tmp_path).folder == suite.folder


def test_an_attempt_is_never_replaced(tmp_path: Path) -> None:
    suite = store.create(tmp_path, "x")
    suite.save(record())
    before = (suite.folder / "runs" / "0001-x.1.json").read_bytes()
    with pytest.raises(ResultsError, match="append-only"):
        suite.save(record(status=FAILED))
    assert (suite.folder / "runs" / "0001-x.1.json").read_bytes() == before


def test_a_started_attempt_counts_even_without_a_record(tmp_path: Path) -> None:
    suite = store.create(tmp_path, "x")
    assert [suite.start("0001-x"), suite.start("0002-y"), suite.start("0001-x")] == [1, 1, 2]


def test_attempts_stand_as_they_began_whatever_the_clock_did(tmp_path: Path) -> None:
    suite = store.create(tmp_path, "x")
    for number, clock in (("0002-x", "12"), ("0001-x", "13"), ("0003-x", "09")):
        attempt = suite.start(number)
        suite.save(dataclasses.replace(record(number, attempt), started=f"2026-01-01T{clock}:00Z"))
    assert [r.trial.id for r in suite.records()] == ["0002-x", "0001-x", "0003-x"]


def test_a_torn_journal_line_loses_nothing_else(tmp_path: Path) -> None:
    suite = store.create(tmp_path, "x")
    suite.start("0001-x")
    with open(suite.folder / "journal.jsonl", "a") as file:
        file.write('{"trial": "0001-x", "atte')
    assert suite.start("0001-x") == 2
    assert suite.start("0001-x") == 3


def test_failed_attempts_are_not_done(tmp_path: Path) -> None:
    suite = store.create(tmp_path, "x")
    suite.save(record("0001-x", 1, FAILED))
    suite.save(record("0002-y", 1, VALID))
    assert list(suite.done()) == ["0002-y"]


def test_latest_follows_and_names_do_not_collide(tmp_path: Path) -> None:
    first, second = store.create(tmp_path, "x"), store.create(tmp_path, "x")
    assert first.folder != second.folder
    assert os.readlink(tmp_path / "latest") == second.folder.name


def test_two_drivers_cannot_share_a_suite(tmp_path: Path) -> None:
    suite = store.create(tmp_path, "x")
    with (
        suite.lock(),
        pytest.raises(ResultsError, match=r"is being run by .* pid \d+"),
        suite.lock(),
    ):
        pass


def test_what_was_begun_when_its_filesystem_went_away_is_removed(tmp_path: Path) -> None:
    suite = store.create(tmp_path, "x")
    suite.save_plan(plan("0001-x"))
    (suite.folder / "runs").mkdir(exist_ok=True)
    left = [suite.folder / ".plan.json.tmp", suite.folder / "runs" / ".0001-x.1.json.tmp"]
    for path in left:
        path.write_text("{")
    with suite.lock():
        assert not any(path.exists() for path in left)
    assert (suite.folder / "plan.json").exists()


def test_damage_is_named(tmp_path: Path) -> None:
    suite = store.create(tmp_path, "x")
    suite.save_plan(plan("0001-x"))
    path = suite.folder / "plan.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "trials": 3}))
    with pytest.raises(ResultsError, match="trials"):
        suite.plan()
    path.write_text(json.dumps({**document, "schema": 99}))
    with pytest.raises(ResultsError, match="schema 99"):
        suite.plan()
    path.write_text("{")
    with pytest.raises(ResultsError, match="damaged"):
        suite.plan()


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="No space left"):
        _full(tmp_path)


def _full(tmp_path: Path) -> None:
    target = tmp_path / ".x.json.tmp"
    target.symlink_to("/dev/full")
    store.write_atomic(tmp_path / "x.json", "x" * 100)


def test_the_remedy_names_the_suite(tmp_path: Path) -> None:
    found = store.create(tmp_path / "a b", "t")
    again = re.escape(f"`iobench run --resume --results '{found.folder}'`")
    for name, words in (
        ("spec.toml", "then the same command again"),
        ("trials.csv", again),
        ("runs/0001-x.1.json", again),
    ):
        (found.folder / name).mkdir()
        (found.folder / name / "in the way").mkdir()
        with pytest.raises(ResultsError, match=words):
            store.write_atomic(found.folder / name, "{}")
        (found.folder / name / "in the way").rmdir()
        (found.folder / name).rmdir()


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="iobench run"):
        store.find(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 1', '{"schema": 1}'])
def test_a_damaged_record_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    found = store.create(tmp_path, "t")
    found.save(record())
    path = found.folder / "runs" / "0001-x.1.json"
    path.write_text(text)
    with pytest.raises(ResultsError, match=r"0001-x\.1\.json.*--resume") as caught:
        found.records()
    assert "\n" not in str(caught.value)
    path.unlink()
    assert found.records() == []


def test_a_foreign_file_among_the_records_is_named(tmp_path: Path) -> None:
    found = store.create(tmp_path, "t")
    (found.folder / "runs" / "notes.json").write_text("{}")
    with pytest.raises(ResultsError, match=r"notes\.json"):
        found.records()


def test_the_last_attempt_counts(tmp_path: Path) -> None:
    """A block that is run again as a whole may fail where it had not."""
    found = store.create(tmp_path, "t")
    found.save(record("0001-a", 1, VALID))
    found.save(record("0001-a", 2, FAILED))
    assert found.done() == {}
