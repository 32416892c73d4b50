"""No sentence that a record contradicts: drawn suites are rendered, and every claim is checked.

The oracle reads the text as a user does, and the facts from the records and the analysis.
"""

from __future__ import annotations

import io
import re
from html import unescape
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console

from iobench.advise.explain import advise
from iobench.analysis import ranks
from iobench.analysis.case_results import CaseResult, CommunicationResult
from iobench.analysis.contrast_results import ContrastResult
from iobench.analysis.evidence import enters, last_attempts
from iobench.analysis.results import SuiteResult
from iobench.analysis.suite import analyse
from iobench.core.records import EXPLORATORY, INVALID, VALID, CacheProof
from iobench.equations import stats
from iobench.report import contrast_words, csv, html, numbers, plots, terminal, words
from iobench.run import cache_state
from tests.build.odd_suites import DAEMON, SHARES, Odd, suites

#: What must not be read anywhere: a value that is not there, printed.
NOT_WORDS = re.compile(r"\b(nan|NaN|None|inf|-inf|True|False)\b")
NUMBER = r"-?\d[\d,]*(?:\.\d+)?"


def drawn(draw: object, height: float, title: str) -> str:
    """In place of a chart: what is said of it."""
    return f"<svg><title>{title}</title></svg>"


def texts(odd: Odd, suite: SuiteResult) -> dict[str, str]:
    """Return what a user reads of a suite: terminal, report and table."""
    console = Console(file=io.StringIO(), width=400, color_system=None)
    terminal.render(suite, console)
    with mock.patch.object(plots, "svg", drawn):
        page = html.render(odd.plan, odd.records, suite)
    page = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)
    table = csv.trials_frame(odd.plan, odd.records).to_csv(index=False)
    return {
        "terminal": console.file.getvalue(),  # type: ignore[attr-defined]
        "report": unescape(re.sub(r"<[^>]+>", " ", page)),
        "table": table,
    }


def value(text: str) -> float:
    return float(text.replace(",", ""))


def check_communication(odd: Odd, case: CaseResult, text: str) -> None:
    """Communication is of ranks that exchange; an efficiency is above 0 and at most 100 %."""
    reported = any(
        ranks.exchange_s(rank) is not None
        for r in odd.records
        if r.trial.stage == "compute" and enters(r)
        for rank in r.ranks
    )
    said = words.communication(case)
    if not isinstance(case.comm, CommunicationResult):
        assert "a step takes" not in said
        return
    assert ("communication" in said) <= reported
    assert ("report no exchange" in said) == (case.comm.exchange_s is None)
    for percent in re.findall(rf"efficiency ({NUMBER}) %", said + text):
        assert 0 < value(percent) <= 100
    if case.comm.limited and case.comm.low <= 0 <= case.comm.high:
        assert "not resolved" in said


def check_case(case: CaseResult) -> None:
    for cache in ("cold", "warm"):
        shown = words.au(case, cache)
        assert shown == numbers.NONE or 0 <= float(shown) <= 1
    for kind, cache in (("fetch", "cold"), ("prep", "warm")):
        stall, said = words.stall_of(case, kind), words.stall(case, kind)
        if "none seen" in said:
            train = words.rate(case, "train", cache)
            assert stall
            assert train
            assert stall.low <= 0 <= stall.high
            assert max(-stall.low, stall.high) * train.value <= words.NEGLIGIBLE
        if stall and stall.limited and not stall.low <= 0 <= stall.high:
            assert "none seen" not in said
            assert "not resolved" not in said


def check_contrast(contrast: ContrastResult) -> None:
    """The words of a verdict are those of its definition, with the numbers as they are printed."""
    found, said = contrast.outcome, contrast_words.outcome(contrast)
    sentence = contrast_words.sentence(contrast)
    printed = re.findall(rf"{NUMBER}", contrast_words.ratio(found))
    shown = [value(text) for text in printed] or [1.0]
    if found.verdict == stats.FASTER:
        assert max(shown) < 1
        assert "faster than" in said or "x as fast as" in said
        assert " 0 %" not in said
        assert " 0.0 %" not in said
    if found.verdict == stats.SLOWER:
        assert min(shown) > 1
        assert value(re.findall(rf"takes ({NUMBER}) x", said)[0]) > 1
    if found.verdict == stats.EQUIVALENT:
        inner = found.simultaneous90
        assert inner
        assert 1 / (1 + contrast.margin) <= inner.low <= inner.high <= 1 + contrast.margin
        assert f"within {numbers.percent(contrast.margin)}" in said
        assert "within 0.0" not in said
    for verdict in (stats.FASTER, stats.SLOWER, stats.EQUIVALENT):
        assert (verdict in sentence) <= (found.verdict == verdict)
    if found.ratio is not None and "confounders: none" in sentence:
        assert contrast.confounders.status == "PASS"
    assert ("attributed to" in sentence) == bool(
        contrast.attribution and contrast.attribution.stage
    )


def check_scope(odd: Odd, contrast: ContrastResult, texts: dict[str, str]) -> None:
    """A verdict says which jobs and nodes its pairs are of, and names no other."""
    last = last_attempts(odd.records).values()
    mine = [r for r in last if r.trial.contrast == contrast.id and enters(r)]
    said = contrast_words.scope(contrast)
    assert sum(a.pairs for a in contrast.allocations) == contrast.pairs
    assert {*re.findall(r"job (\S+) on", said)} <= {r.job for r in mine}
    places = {(r.job, tuple(n.node for n in r.nodes)) for r in mine}
    assert len(contrast.allocations) <= len(places)
    several = len(contrast.allocations) > 1
    assert (f"for {len(contrast.allocations)} allocations" in said) == several
    assert ("needs several allocations" in said) <= (not several)
    if contrast.pairs and all(job for job, _ in places):
        assert said
    for where in ("terminal", "report"):
        assert said in texts[where]


def check_counts(odd: Odd, suite: SuiteResult, text: str) -> None:
    """The counts in sentences are those of the records."""
    last = last_attempts(odd.records).values()
    valid = sum(r.status == VALID for r in last)
    assert f"{valid} of {len(odd.plan.trials)} trials VALID" in text
    bad = len(odd.plan.trials) - sum(map(enters, last))
    named = re.findall(r"incomplete: (\d+) of", words.incomplete(suite))
    assert (int(named[0]) if named else 0) == bad
    assert ("have not begun" in words.incomplete(suite)) == (not bad and odd.plan.phase == 1)
    read = [r for r in last if enters(r) and r.trial.stage in ("read", "decode", "load", "train")]
    sums = {tuple(rank.ids_sum for rank in r.ranks) for r in read}
    if "saw the same ones" in words.sameness(suite) and all("" not in seen for seen in sums):
        assert len(sums) == 1


def check_daemons(odd: Odd, text: str) -> None:
    """A daemon's own memory is named beside a cold figure that it may have served."""
    cold = [r for r in last_attempts(odd.records).values() if enters(r) and r.cache.label]
    served = [r for r in cold if r.cache.unseen and r.trial.stage in ("load", "train", "read")]
    assert (DAEMON in text) >= bool(served)


@settings(
    max_examples=60, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(odd=suites())
def test_no_sentence_is_contradicted_by_its_records(odd: Odd) -> None:
    suite = analyse(odd.plan, odd.records)
    found = texts(odd, suite)
    for where, text in found.items():
        bad = None if where == "table" else NOT_WORDS.search(text)
        assert not bad, f"{where}: {text[max(0, bad.start() - 150) : bad.end() + 50]}"
    assert not re.search(r"\b(nan|None|inf)\b", found["table"])
    for case in suite.pipelines:
        check_communication(odd, case, found["terminal"])
        check_case(case)
    for contrast in suite.contrasts:
        check_contrast(contrast)
        check_scope(odd, contrast, found)
    check_counts(odd, suite, found["terminal"])
    check_daemons(odd, found["report"])
    for line in advise(suite):
        assert not re.search(r"\b0 workers|\b1 workers|keep 0 %| x faster", line.text), line


PROOFS = st.builds(
    CacheProof, resident_before=SHARES, resident_after=SHARES,
    bytes_needed=st.just(10_000), unseen=st.sampled_from(["", DAEMON]),
    bytes_storage=st.none() | st.sampled_from([0, 9_799, 9_800, 10_000, 101]),
    counter=st.sampled_from(["", "fuse at / counts none for a process"]),
)  # fmt: skip


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(proof=PROOFS, cache=st.sampled_from(["cold", "warm", "0.5"]))
def test_a_cache_state_is_valid_only_by_all_of_its_facts(proof: CacheProof, cache: str) -> None:
    status, reasons = cache_state.judge(cache, "load", proof, 1.0)
    known = None not in (proof.resident_before, proof.bytes_storage)
    assert (status == VALID) <= known
    if cache != "warm":
        assert (status == VALID) <= (not proof.unseen)
        assert (DAEMON in " ".join(reasons)) == bool(proof.unseen)
    if cache == "cold" and status == VALID:
        assert proof.resident_before is not None
        assert proof.resident_before <= cache_state.COLD_RESIDENT_MAX
    assert status in (VALID, EXPLORATORY, INVALID)
    for reason in reasons:  # a share that missed its limit is not printed as that limit
        if found := re.search(r"([\d.]+)% of the pages .*\((at most|at least) ([\d.]+)%\)", reason):
            share, way, limit = float(found[1]), found[2], float(found[3])
            assert share > limit if way == "at most" else share < limit


@pytest.mark.parametrize("x", [0.9996, 1.0003, 0.9999, 1.2, 1.0, 0.2])
def test_a_ratio_that_is_not_1_is_not_printed_as_1(x: float) -> None:
    for text in (numbers.ratio(x), numbers.ratio(x, 4), numbers.ratio3(x)):
        assert (float(text) == 1) == (x == 1)
        assert float(text) == pytest.approx(x, abs=5e-3)


@pytest.mark.parametrize("form", [numbers.number, numbers.percent, numbers.milliseconds])
def test_what_is_no_number_is_not_printed_as_one(form: object) -> None:
    assert form(float("nan")) == numbers.NONE  # type: ignore[operator]
    assert form(None) == numbers.NONE  # type: ignore[operator]
    assert "unbounded" in form(float("inf"))  # type: ignore[operator]
