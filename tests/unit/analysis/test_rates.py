"""Every pipeline's rate beside its limit: rows, groups, their order, CSV and command."""

from __future__ import annotations

import csv as reader
import dataclasses
import io
import json
from pathlib import Path
from typing import Any, List

import pytest
from click.testing import CliRunner

from iobench.analysis import rates
from iobench.analysis.results import SuiteResult
from iobench.analysis.suite import analyse
from iobench.cli.main import cli
from iobench.core import registry
from iobench.core.cases import Case, Plan, Trial
from iobench.core.errors import ResultsError
from iobench.core.records import Record
from iobench.report import contrast_words, csv, html, rate_plot
from iobench.run import store
from tests.build import report as fixture

Suite = tuple[Plan, List[Record]]


@pytest.fixture(scope="module")
def suite() -> Suite:
    return fixture.suite()


@pytest.fixture(scope="module")
def result(suite: Suite) -> SuiteResult:
    return analyse(*suite)


def rungs(suite: Suite, *stages: str) -> SuiteResult:
    """Return the analysis of a suite that planned these stages alone."""

    def kept(trial: Trial) -> bool:
        return trial.stage in stages and not trial.contrast

    plan = dataclasses.replace(suite[0], trials=tuple(filter(kept, suite[0].trials)), contrasts=())
    return analyse(plan, [r for r in suite[1] if kept(r.trial)])


def test_a_row_has_the_rate_and_the_limit_of_its_case(result: SuiteResult) -> None:
    table = rates.by(result)
    cases = {case.case: case for case in result.pipelines}
    assert {(r.case, r.cache) for r in table.rows} == {
        (p, cache) for p in fixture.RATES for cache in ("cold", "warm")
    }
    for row in table.rows:
        case = cases[row.case]
        assert (row.stage, row.trials) == ("train", fixture.REPEATS)
        assert row.samples_per_s == case.rate("train", row.cache)
        assert (row.binding, row.regime) == (
            case.limits[row.cache].binding, case.limits[row.cache].regime
        )  # fmt: skip
    assert {r.binding for r in table.rows} == {"compute", "decode", "storage"}


def test_the_fastest_from_the_mount_comes_first_and_groups_stay_together(
    result: SuiteResult,
) -> None:
    rows = rates.by(result, ["format"]).rows
    cold = {r.case: r.samples_per_s.value for r in rows if r.cache == "cold" and r.samples_per_s}
    order = list(dict.fromkeys(r.by["format"] for r in rows))
    best = {f: max(v for c, v in cold.items() if c.endswith(f)) for f in order}
    assert order == sorted(order, key=lambda f: -best[f])
    assert [r.by["format"] for r in rows] == [f for f in order for r in rows if r.by["format"] == f]
    assert [r.case for r in rows if r.by["format"] == "jpeg"][::2] == ["dali:jpeg", "torch:jpeg"]


def test_a_decoder_is_that_of_a_loader_which_takes_one(result: SuiteResult) -> None:
    found = {r.case: r.by["decoder"] for r in rates.by(result).rows}
    assert found["torch:jpeg"] == "simplejpeg"
    assert found["dali:jpeg"] == ""


def test_without_training_the_rate_is_loading_and_no_limit_is_named(suite: Suite) -> None:
    found = rungs(suite, "load")
    cases = {case.case: case for case in found.pipelines}
    rows = rates.by(found).rows
    assert {row.stage for row in rows} == {"load"}
    for row in rows:
        assert row.samples_per_s == cases[row.case].rate("load", row.cache)
        assert row.binding is None
        assert "compute" in row.reason or "read" in row.reason


def test_what_did_not_run_is_a_row_with_the_reason(suite: Suite) -> None:
    table = rates.by(analyse(suite[0], []))
    assert len(table.rows) == 2 * len(fixture.RATES)
    assert all(row.samples_per_s is None and row.reason for row in table.rows)
    assert rate_plot.rates(table) == ""


def test_a_key_that_is_none_is_named_with_those_there_are(result: SuiteResult) -> None:
    with pytest.raises(ResultsError, match=r"--by colour: not a key; there are loader, format"):
        rates.by(result, ["loader", "colour"])


def test_the_csv_holds_what_the_rows_hold(result: SuiteResult) -> None:
    table = rates.by(result)
    found = list(reader.DictReader(io.StringIO(csv.rates_text(table))))
    assert len(found) == len(table.rows)
    for line, row in zip(found, table.rows, strict=True):
        assert row.samples_per_s is not None
        assert float(line["samples_per_s"]) == row.samples_per_s.value
        assert float(line["low"]) == row.samples_per_s.low
        assert (line["loader"], line["cache"]) == (row.by["loader"], row.cache)
        assert (line["binding"], line["trials"]) == (row.binding, str(row.trials))


def test_the_picture_names_every_rate_and_its_limit(result: SuiteResult) -> None:
    picture = rate_plot.rates(rates.by(result))
    for row in rates.by(result).rows:
        assert f"{row.case} {row.cache} {rate_plot.words(row)}" in picture
    one = dataclasses.replace(rates.by(result), rows=rates.by(result).rows[:2])
    assert rate_plot.rates(one) == ""  # one pipeline is no choice


@pytest.fixture(scope="module")
def folder(suite: Suite, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = store.at(tmp_path_factory.mktemp("rates") / "suite")
    made.save_plan(suite[0])
    for record in suite[1]:
        made.save(record)
    return made.folder


def test_the_command_prints_table_csv_and_json(folder: Path, result: SuiteResult) -> None:
    def run(*words: str) -> str:
        done = CliRunner().invoke(cli, ["compare", str(folder), *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    assert "fetch-bound (storage)" in run("--by", "loader,format")
    assert run("--by", "loader, format", "--csv") == csv.rates_text(
        rates.by(result, ["loader", "format"])
    )
    document = json.loads(run("--by", "loader,format", "--json"))
    assert document["by"] == ["loader", "format"]
    assert len(document["rows"]) == 2 * len(fixture.RATES)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name two results folders, or one and --by"),
        (["--csv"], "--csv needs --by"),
        (["OTHER", "--by", "loader"], "--by takes one results folder"),
    ],
)
def test_a_wrong_use_is_named(folder: Path, words: List[str], said: str) -> None:
    done = CliRunner().invoke(cli, ["compare", str(folder), *words])
    assert done.exit_code == 2
    assert said in done.output


def with_threads(suite: Suite, label: str, **changes: Any) -> SuiteResult:
    """Return the analysis of the suite with one of its cases changed."""
    plan = suite[0]
    cases = [dataclasses.replace(c, **changes) if c.label == label else c for c in plan.cases]
    return analyse(dataclasses.replace(plan, cases=tuple(cases)), suite[1])


def test_unequal_numbers_of_threads_are_named_beside_the_rates(
    suite: Suite, result: SuiteResult
) -> None:
    assert rates.by(result).note == ""
    assert {row.decoding_threads for row in rates.by(result).rows} == {fixture.WORKERS}
    table = rates.by(with_threads(suite, "torch:jpeg", loader_options={"threads": 4}))
    assert "not equally many: 2 of " in table.note
    assert table.note.endswith(f"; {4 * fixture.WORKERS} of torch:jpeg")
    assert {r.decoding_threads for r in table.rows if r.case == "torch:jpeg"} == {8}
    absent = with_threads(suite, "torch:jpeg", loader="of_a_plug_in")
    assert rates.by(absent).note == "", "what is not known is not compared"


def test_pipelines_with_the_same_numbers_of_workers_are_compared_alike(suite: Suite) -> None:
    """A matrix of pipelines x workers has unequal rows, and nothing hidden in them."""
    plan = suite[0]
    twice = [
        dataclasses.replace(case, label=f"{case.label} {workers}", workers=workers)
        for case in fixture.CASES
        for workers in (1, 2)
    ]
    found = {case.case: case for case in analyse(*suite).pipelines}
    cases = [
        dataclasses.replace(found[case.label[:-2]], case=case.label, decoding_threads=case.workers)
        for case in twice
    ]
    table = rates.by(dataclasses.replace(analyse(plan, []), pipelines=cases))
    assert len(table.rows) == 2 * len(twice)
    assert table.note == ""


def test_arms_with_unequal_numbers_of_threads_are_named(suite: Suite, result: SuiteResult) -> None:
    assert not any(contrast.decoding_threads for contrast in result.contrasts)
    changed = with_threads(suite, "torch:jpeg", workers=3)
    of_jpeg = [c for c in changed.contrasts if c.arm == "torch:jpeg"]
    assert of_jpeg
    for contrast in changed.contrasts:
        text = contrast_words.unequal_threads(contrast)
        assert text == ("threads that read and decode: 3 against 2" if contrast in of_jpeg else "")
        assert text in contrast_words.sentence(contrast)
    page = html.render(*suite, changed)
    assert "Threads that read and decode: 3 against 2." in page
    assert "Threads of a rank that read and decode are not equally many: " in page


def test_workers_alone_are_what_is_compared(suite: Suite) -> None:
    base = dataclasses.replace(fixture.CASES[0], label=fixture.BASE)
    more = dataclasses.replace(base, label="torch:jpeg", workers=4)
    others = [c for c in fixture.CASES if c.label not in (base.label, more.label)]
    plan = dataclasses.replace(suite[0], cases=(base, more, *others))
    found = {c.arm: c.decoding_threads for c in analyse(plan, suite[1]).contrasts}
    assert not found["torch:jpeg"]


@pytest.mark.parametrize(
    ("case", "threads"),
    [
        (Case(workers=3), 3),
        (Case(workers=0), 1),
        (Case(workers=2, loader_options={"threads": 8}), 16),
        (Case(loader="dali", workers=2), 2),
        (Case(loader="spdl", workers=0), 1),
        (Case(loader="native", workers=1), 1),
        (Case(loader="null", workers=2), 0),
    ],
)
def test_every_loader_states_its_threads(case: Case, threads: int) -> None:
    assert registry.load("loaders", case.loader).decoding_threads(case) == threads
