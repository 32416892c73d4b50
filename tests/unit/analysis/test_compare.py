"""Two suites side by side: ratios with unpaired intervals, what differs, never a verdict."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Callable, List

import pytest
from click.testing import CliRunner

from iobench.analysis import compare
from iobench.analysis.results import to_json
from iobench.cli.main import cli
from iobench.core.cases import Plan
from iobench.core.errors import ResultsError
from iobench.core.records import Record
from iobench.run import store
from tests.build import report as fixture

Suite = tuple[Plan, List[Record]]


@pytest.fixture(scope="module")
def suite() -> Suite:
    return fixture.suite()


def compared(a: Suite, b: Suite) -> Any:
    return to_json(compare.compare_suites(a, b))


def slower(record: Record, factor: float, stage: str, cache: str) -> Record:
    """Return the record with its loop's clock readings stretched."""
    trial = record.trial
    if not record.ranks or (trial.stage, trial.cache) != (stage, cache):
        return record
    steps = record.ranks[0].steps
    stretched = {n: [t * factor for t in getattr(steps, n)] for n in ("request_s", "ready_s",
                                                                      "done_s")}  # fmt: skip
    rank = dataclasses.replace(record.ranks[0], steps=dataclasses.replace(steps, **stretched))
    return dataclasses.replace(record, ranks=(rank,))


def elsewhere(record: Record, **facts: Any) -> Record:
    ranks = tuple(
        dataclasses.replace(r, fingerprint={**r.fingerprint, **facts}) for r in record.ranks
    )
    return dataclasses.replace(record, ranks=ranks)


def test_a_suite_against_its_like_is_one(suite: Suite) -> None:
    document = compared(suite, suite)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert len(document["rows"]) > 20
    assert {row["standing"] for row in document["rows"]} == {"EXPLORATORY"}
    assert all(row["ratio"]["value"] == pytest.approx(1.0) for row in document["rows"])
    for row in document["rows"]:
        assert row["ratio"]["low"] <= 1 + 1e-9
        assert row["ratio"]["high"] >= 1 - 1e-9
    assert {row["same_order"] for row in document["rows"] if row["stage"] != "compute"} == {True}
    assert document["differences"] == []
    assert "verdict" not in json.dumps(document["rows"])


def test_a_rung_that_took_longer_is_seen_alone(suite: Suite) -> None:
    other = suite[0], [slower(r, 1.25, "load", "warm") for r in suite[1]]
    rows = {(r["case"], r["stage"], r["cache"]): r for r in compared(suite, other)["rows"]}
    for (_, stage, cache), row in rows.items():
        expected = 1.25 if (stage, cache) == ("load", "warm") else 1.0
        assert row["ratio"]["value"] == pytest.approx(expected)
        assert row["ratio"]["method"] == "welch"
    found = rows["torch:lmdb", "load", "warm"]
    assert found["samples_per_s"]["a"] == pytest.approx(1.25 * found["samples_per_s"]["b"])


def test_every_difference_of_the_fingerprints_is_listed(suite: Suite) -> None:
    other = (
        dataclasses.replace(suite[0], version="0.2.0"),
        [elsewhere(r, host="node18", libc="glibc 2.31") for r in suite[1]],
    )
    document = compared(suite, other)
    texts = [d["text"] for d in document["differences"]]
    assert "host: node17 against node18" in texts
    assert "libc: glibc 2.36 against glibc 2.31" in texts
    assert "iobench: 0.1.0 against 0.2.0" in texts


def test_settings_and_orders_that_differ_are_stated(suite: Suite) -> None:
    plan, records = suite

    def wider(case: Any) -> Any:
        return dataclasses.replace(case, workers=4) if case.label == "torch:lmdb" else case

    other = dataclasses.replace(plan, cases=tuple(map(wider, plan.cases)))
    moved = []
    for record in records:
        ranks = tuple(dataclasses.replace(k, order_digest="z") for k in record.ranks)
        moved.append(dataclasses.replace(record, ranks=ranks))
    document = compared(suite, (other, moved))
    found = next(d for d in document["differences"] if "workers" in d["text"])
    assert found == {"text": "case workers: 2 against 4", "cases": ["torch:lmdb"]}
    orders = {row["same_order"] for row in document["rows"] if row["stage"] != "compute"}
    assert orders == {False}


def test_equal_cases_are_found_whatever_they_are_called(suite: Suite) -> None:
    plan, records = suite

    def renamed(case: Any) -> Any:
        return dataclasses.replace(case, label=f"{case.label} runtime=bare", location="/elsewhere")

    trials = tuple(dataclasses.replace(t, case=renamed(t.case)) for t in plan.trials)
    other = dataclasses.replace(plan, cases=tuple(map(renamed, plan.cases)), trials=trials)
    moved = [dataclasses.replace(r, trial=dataclasses.replace(r.trial, case=renamed(r.trial.case)))
             for r in records]  # fmt: skip
    document = compared(suite, (other, moved))
    assert document["rows"][0]["case_b"] == f"{document['rows'][0]['case']} runtime=bare"
    assert document["differences"] == []
    assert document["only_in"] == {"a": [], "b": []}


def test_an_equal_case_goes_before_one_of_the_same_name(suite: Suite) -> None:
    plan, records = suite
    one = plan.cases[0]
    small = dataclasses.replace(one, label=f"{one.label} batch=32", batch=32)
    a = dataclasses.replace(plan, cases=(one, small))
    b = dataclasses.replace(plan, cases=(dataclasses.replace(small, label=one.label),))
    assert [(x.batch, y.batch) for x, y in compare._common(a.cases, b.cases)] == [(32, 32)]
    assert [(x.batch, y.batch) for x, y in compare._common(b.cases, a.cases)] == [(32, 32)]
    document = compared((a, records), (dataclasses.replace(plan, cases=(one,)), records))
    assert document["only_in"] == {"a": [small.label], "b": []}
    assert {row["case"] for row in document["rows"]} == {one.label}


def test_what_only_one_has_is_said(suite: Suite) -> None:
    plan, records = suite
    fewer = dataclasses.replace(plan, cases=plan.cases[1:])
    document = compared(suite, (fewer, records))
    assert document["only_in"]["a"] == ["torch:lmdb"]
    assert "torch:lmdb" not in {row["case"] for row in document["rows"]}


def test_other_samples_are_refused(suite: Suite) -> None:
    plan, records = suite
    other = dataclasses.replace(plan, dataset=dataclasses.replace(plan.dataset, digest="e" * 32))
    with pytest.raises(ResultsError, match=r"dddddddddddd.*eeeeeeeeeeee.*one dataset"):
        compare.compare_suites(suite, (other, records))


def test_suites_without_a_common_case_are_refused(suite: Suite) -> None:
    plan, records = suite
    apart = [dataclasses.replace(plan, cases=plan.cases[i : i + 1]) for i in (0, 1)]
    with pytest.raises(
        ResultsError, match="no case is in both: A has torch:lmdb; B has torch:hdf5"
    ):
        compare.compare_suites((apart[0], records), (apart[1], records))


# -- the command -----------------------------------------------------------------------------


@pytest.fixture
def folders(suite: Suite, tmp_path: Path) -> Callable[[str, Suite], Path]:
    def write(name: str, found: Suite) -> Path:
        made = store.create(tmp_path / name, "bench-io")
        made.save_plan(found[0])
        for record in found[1][:120]:
            made.save(record)
        return made.folder

    return write


def test_the_command_prints_a_table_and_json(
    suite: Suite, folders: Callable[[str, Suite], Path]
) -> None:
    other = suite[0], [elsewhere(r, host="node18") for r in suite[1]]
    a, b = folders("a", suite), folders("b", other)
    shown = CliRunner().invoke(cli, ["compare", str(a), str(b.parent)])
    assert shown.exit_code == 0, shown.output
    assert "torch:lmdb" in shown.output
    assert "1.000 [" in shown.output
    assert "differs: host: node17 against node18" in shown.output
    assert "EXPLORATORY" in shown.output
    assert not {"FASTER", "SLOWER", "EQUIVALENT"} & set(shown.output.split())
    as_json = CliRunner().invoke(cli, ["compare", str(a), str(b), "--json"])
    document = json.loads(as_json.output)
    assert document["a"]["folder"] == str(a)
    assert document["schema"] == compare.COMPARE_SCHEMA


def test_foreign_and_equal_folders_are_refused(
    suite: Suite, folders: Callable[[str, Suite], Path], tmp_path: Path
) -> None:
    a = folders("a", suite)
    for other, message in ((tmp_path, "no suite at"), (a, "the same suite")):
        done = CliRunner().invoke(cli, ["compare", str(a), str(other)])
        assert done.exit_code
        assert message in str(done.exception)
    (folders("c", suite) / "plan.json").write_text('{"schema": 99}')
    done = CliRunner().invoke(cli, ["compare", str(a), str(tmp_path / "c")])
    assert "schema 99" in str(done.exception)
