"""The table, the terminal and the HTML of a suite in memory."""

from __future__ import annotations

import dataclasses
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, List

import pytest

from iobench.analysis.results import SuiteResult, to_json
from iobench.analysis.suite import analyse
from iobench.core.cases import Plan
from iobench.core.records import CacheProof, NodeRecord, Record
from iobench.data import accounting
from iobench.report import contrast_words, csv, html, numbers, plots, terminal, words
from iobench.report.screen import Screen
from tests.build import report as fixture

ISSUE_COLUMNS = [
    "trial", "contrast", "block", "attempt", "pipeline", "format", "loader", "trainer", "runtime",
    "launcher", "world_size", "location", "filesystem", "placement", "order", "transform", "batch",
    "workers", "stage", "cache", "status", "reason", "samples", "wall_s", "wait_s", "contention_s",
    "samples_per_s", "startup_s", "bytes_needed", "bytes_read", "bytes_storage", "resident_before",
    "resident_after", "samples_digest",
]  # fmt: skip
VOID = {"meta", "link", "br", "img", "input", "hr"}


@pytest.fixture(scope="module")
def suite() -> tuple[Plan, List[Record]]:
    return fixture.suite()


@pytest.fixture(scope="module")
def document(suite: tuple[Plan, List[Record]]) -> SuiteResult:
    return analyse(*suite)


@pytest.fixture(scope="module")
def page(suite: tuple[Plan, List[Record]], document: SuiteResult) -> str:
    return html.render(*suite, document)


# -- csv -------------------------------------------------------------------------------------


def test_columns_are_the_promised_ones_in_order(suite: tuple[Plan, List[Record]]) -> None:
    assert list(csv.trials_frame(*suite).columns[: len(ISSUE_COLUMNS)]) == ISSUE_COLUMNS


def test_pandas_reads_back_what_was_written(
    suite: tuple[Plan, List[Record]], tmp_path: Path
) -> None:
    import pandas

    csv.write_csv(tmp_path / "trials.csv", *suite)
    frame = pandas.read_csv(tmp_path / "trials.csv")
    assert len(frame) == len(suite[1])
    assert [p.name for p in tmp_path.iterdir()] == ["trials.csv"]
    timed = frame[frame.samples.notna() & frame.wall_s.notna()]
    assert len(timed) > 200
    assert (timed.samples / timed.wall_s / timed.samples_per_s - 1).abs().max() < 1e-9
    cold = frame[(frame.cache == "cold") & (frame.status == "VALID")]
    assert (cold.bytes_storage >= cold.bytes_needed).all()
    assert frame.resident_before.dropna().between(0, 1).all()


def test_one_row_an_attempt(suite: tuple[Plan, List[Record]]) -> None:
    frame = csv.trials_frame(*suite)
    twice = frame[frame.trial.duplicated(keep=False)]
    assert list(twice.attempt) == [1, 2]
    assert list(twice.status) == ["FAILED", "VALID"]
    assert twice.reason.iloc[0].startswith("worker killed")
    assert list(twice.samples.isna()) == [True, False]


def test_contention_of_a_train_row(suite: tuple[Plan, List[Record]]) -> None:
    frame = csv.trials_frame(*suite)
    train = frame[frame.stage == "train"]
    expected = 0.004 * fixture.STEP_S * train.steps.astype(float)
    assert (train.contention_s.astype(float) - expected).abs().max() < 1e-9
    assert frame[frame.stage != "train"].contention_s.isna().all()


def test_no_record_is_an_empty_table(suite: tuple[Plan, List[Record]], tmp_path: Path) -> None:
    import pandas

    csv.write_csv(tmp_path / "t.csv", suite[0], [])
    assert list(pandas.read_csv(tmp_path / "t.csv").columns[:3]) == ISSUE_COLUMNS[:3]


# -- terminal --------------------------------------------------------------------------------


def shown(document: SuiteResult, width: int = 100) -> str:
    out = io.StringIO()
    terminal.render(document, Screen(file=out, width=width, force_terminal=False))
    return out.getvalue()


def test_a_screen_says_what_limits_who_wins_and_what_to_do(document: SuiteResult) -> None:
    text = shown(document)
    assert re.search(r"torch:jpeg\s+cold .*fetch 2\d %.*fetch-bound", text)
    assert re.search(r"dali:jpeg\s+0\.\d+ \(0\.\d+ to 0\.\d+\)\s+FASTER", text)
    assert "INCONCLUSIVE" in text
    assert "more pairs needed" in text.replace("\n", " ") or "more" in text
    assert "What to do next" in text
    assert "stage the data" in text
    assert "228 of 229 trials VALID, 1 INVALID" in text


def test_where_nothing_was_loaded_or_trained_the_rates_below_are_shown(
    suite: tuple[Plan, List[Record]],
) -> None:
    whole, records = suite
    left = [r for r in records if r.trial.stage in words.BELOW and not r.trial.contrast]
    plan = dataclasses.replace(whole, trials=tuple(r.trial for r in left), contrasts=())
    found = analyse(plan, left)
    screen, page = shown(found, 160), html.render(plan, left, found)
    assert "ceiling/s" in screen
    assert "train/s" not in screen
    table = page[page.index('<table class="stack">') :].partition("</table>")[0]
    assert "n/a" not in table
    for heading in ("ceiling/s cold", "read/s cold", "read/s warm", "decode/s warm"):
        assert table.count(f'data-h="{heading}"') == table.count('class="name"') > 0
    assert "Nothing was loaded or trained" in page


def test_reasons_that_differ_in_numbers_are_told_once(document: SuiteResult) -> None:
    reasons = {"not cold: 5 of 9": 2, "late": 3, "not cold: 6 of 9": 4, "a rival": 1}
    validity = dataclasses.replace(document.validity, reasons=reasons)
    told = words.reasons(dataclasses.replace(document, validity=validity), 2)
    assert told == ["6 x not cold: 5 of 9", "3 x late; 1 more kinds: trials.csv"]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_line_of_the_tables_is_cut(document: SuiteResult, width: int) -> None:
    text = shown(document, width)
    assert "…" not in text
    assert len(text.splitlines()) < 70


@pytest.mark.parametrize("kept", [0, 7, 40, 120])
def test_an_interrupted_suite_has_a_report(suite: tuple[Plan, List[Record]], kept: int) -> None:
    plan, records = suite[0], suite[1][:kept]
    document = analyse(plan, records)
    assert "not run: `iobench run --resume`" in shown(document)
    page = html.render(plan, records, document)
    assert "incomplete" in page
    assert well_formed(page)


# -- words -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "text"),
    [(None, "n/a"), (0, "0"), (1234.5, "1,234"), (0.8213, "0.821"), (12.34, "12.3"),
     (float("inf"), "unbounded")],
)  # fmt: skip
def test_numbers(x: Any, text: str) -> None:
    assert numbers.number(x) == text


def test_a_stall_whose_interval_holds_zero_is_no_figure(document: SuiteResult) -> None:
    hdf5 = next(p for p in document.pipelines if p.case == "torch:hdf5")
    assert words.stall(hdf5, "fetch").startswith("not resolved (-")
    lmdb = next(p for p in document.pipelines if p.case == "torch:lmdb")
    assert words.stall(lmdb, "fetch").startswith("none seen (")
    assert re.match(r"2\d % \(0\.\d+ to 0\.\d+ ms\)", words.stall(hdf5, "prep"))


def test_faster_is_a_rate_and_slower_a_time(document: SuiteResult) -> None:
    said = {c.id: contrast_words.outcome(c) for c in document.contrasts}
    assert re.match(r"dali:jpeg is 2\d % faster than torch:lmdb", said["c03"])
    assert re.match(r"torch:hdf5 takes [23]\.\d+ x the time of torch:lmdb", said["c01"])


# -- html ------------------------------------------------------------------------------------


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: List[str] = []
        self.bad: List[str] = []
        self.links: List[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action"):
                self.links.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.bad.append(tag)


def well_formed(page: str) -> bool:
    tags = _Tags()
    tags.feed(page)
    return not tags.bad and not tags.open


def test_html_is_balanced_and_asks_nobody(page: str) -> None:
    tags = _Tags()
    tags.feed(page)
    assert not tags.bad
    assert not tags.open
    assert {link for link in tags.links if not link.startswith("#")} == {"data:,"}
    assert "@import" not in page
    assert "url(http" not in page
    assert "<script src" not in page


def test_html_has_its_charts_with_spoken_titles(page: str) -> None:
    for plot in ("rates", "forest", "stalls", "waits", "roofline-cold", "roofline-warm"):
        assert f'id="plot-{plot}"' in page
    assert page.count('class="card plot ladder"') == 4
    assert page.count('<svg role="img" aria-label="') == page.count("<svg") == 10
    assert page.count("<title>") == 1 + 10


def test_html_shows_proof_and_environment(page: str) -> None:
    assert "3.10% of the pages were resident before" in page
    assert "data-cold" in page
    assert "AMD EPYC 7543" in page


def test_user_text_is_escaped(suite: tuple[Plan, List[Record]]) -> None:
    import dataclasses

    plan = dataclasses.replace(suite[0], version="<b>&")
    page = html.render(plan, suite[1][:60], analyse(plan, suite[1][:60]))
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page


def test_html_is_written_whole(
    suite: tuple[Plan, List[Record]], document: SuiteResult, tmp_path: Path
) -> None:
    html.write(tmp_path / "report.html", *suite, document)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text().rstrip().endswith("</html>")


def test_every_trial_names_the_digest_of_the_samples_it_saw(
    suite: tuple[Plan, List[Record]],
) -> None:
    plan, records = suite
    frame = csv.trials_frame(plan, records)
    loads = frame[frame.stage == "load"]
    assert set(loads.samples_digest.dropna()) == {fixture.DATASET.digest}


def test_what_the_parts_remark_stands_beside_the_figures(
    suite: tuple[Plan, List[Record]],
) -> None:
    """A run that was short against a queue, and a trainer that cannot tell its wait."""
    plan, records = suite

    def remarking(record: Record) -> Record:
        if record.trial.stage != "train" or not record.ranks:
            return record
        notes = {
            "queue_batches": 7,
            "trainer": {"remark": "no <wait> is told apart", "wait_known": False},
        }
        return dataclasses.replace(
            record, ranks=(dataclasses.replace(record.ranks[0], notes=notes),)
        )

    changed = [remarking(record) for record in records]
    document = analyse(plan, changed)
    assert not any(w for case in document.pipelines for w in case.step_wait_s.values())
    text = shown(document, 200)
    assert "no <wait> is told apart" in text
    assert "with a queue of 7: part of them may have been made before" in text
    written = html.render(plan, changed, document)
    assert "no &lt;wait&gt; is told apart" in written
    assert 'id="remarks"' in written
    assert 'id="remarks"' not in html.render(*suite, analyse(*suite))


# -- the files of a user's tree ---------------------------------------------------------------


def with_files(plan: Plan, source: str) -> Plan:
    counts = accounting.Accounting(1300, 1280, 12, {"cmyk": 3, "cut": 5}, {"turned": 41})
    recipe = {accounting.KEY: accounting.to_json(counts)}
    return dataclasses.replace(
        plan, dataset=dataclasses.replace(plan.dataset, source=source, recipe=recipe)
    )


def test_every_file_of_a_tree_is_in_the_report(
    suite: tuple[Plan, List[Record]], tmp_path: Path
) -> None:
    plan = with_files(suite[0], "/t/<script>alert(1)</script>\udce9[/red]")
    found = analyse(plan, suite[1])
    page = html.render(plan, suite[1], found)
    table = page[page.index('id="files"') :].partition("</table>")[0]
    for line in accounting.table(found.dataset.files):
        assert line.state in table
        assert f">{line.files:,}</td>" in table
        assert line.remedy in table
    assert "<script>alert" not in page
    html.write(tmp_path / "report.html", plan, suite[1], found)
    assert "\\udce9" in (tmp_path / "report.html").read_text()
    console = Screen(file=io.StringIO(), width=120)
    terminal.render(found, console)
    shown = console.file.getvalue()
    assert "[/red]: 1,280 of 1,300 used; 12 not drawn; 8 left out (5 cut short" in shown
    assert to_json(found)["dataset"]["files"]["left_out"] == {"cmyk": 3, "cut": 5}


def test_synthetic_data_have_no_table_of_files(document: SuiteResult, page: str) -> None:
    assert 'id="files"' not in page
    assert "files" not in to_json(document)["dataset"]


def test_of_many_nodes_those_with_the_worst_proofs_are_shown() -> None:
    def row(name: str, before: float) -> tuple[tuple[str, str, str], list[NodeRecord]]:
        return ("a", "read cold", name), [
            NodeRecord(name, (0,), CacheProof(resident_before=before))
        ]

    rows = dict(row(f"n{k}", 0.001 * (k == 37)) for k in range(40))
    shown = [name for (_, _, name), _ in html._worst(rows)]
    assert len(shown) == html.NODES
    assert "n37" in shown
    assert html._spans([7, 0, 1, 2, 12]) == "0-2, 7, 12"


def test_a_long_label_is_broken_where_a_setting_ends() -> None:
    label = "webdataset:tar order=shards:200 format_options=shard_bytes:4000000"
    lines = ["webdataset:tar", "order=shards:200", "format_options=", "shard_bytes:4000000"]
    assert plots.wrap(label).split("\n") == lines
    assert plots.wrap("torch:jpeg workers=2") == "torch:jpeg workers=2"
