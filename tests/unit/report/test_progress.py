"""What a log shows of long work: how much is done, and how long the rest may take."""

from __future__ import annotations

import io

from rich.console import Console

from iobench.core.cases import Case, Trial
from iobench.core.records import FAILED, INVALID, CacheProof, Record
from iobench.report.progress import Reporter


def test_a_search_says_how_long_it_may_take_and_its_pairs_how_many_there_are() -> None:
    written = io.StringIO()
    reporter = Reporter(Console(file=written, width=200))
    reporter.search(600.0)
    case = Case(label="torch:jpeg workers=4")
    reporter.trial(3, 4, 8.0, Trial("4", case, "train", "warm"))
    assert written.getvalue() == (
        "[3/?] train warm torch:jpeg workers=4 searching, at most 10 min left\n"
    )
    reporter.trial(46, 46, 0.0, Trial("46", case, "train", "warm", contrast="g01"))
    assert written.getvalue().splitlines()[1].startswith("[46/46] train warm torch:jpeg")


def test_a_failure_is_reported_when_it_happens_and_once() -> None:
    written = io.StringIO()
    reporter = Reporter(Console(file=written, width=200))
    for name, stage, status in (
        ("1", "train", FAILED), ("2", "train", FAILED), ("3", "load", INVALID),
        ("4", "read", FAILED),
    ):  # fmt: skip
        trial = Trial(name, Case(label="torch:jpeg"), stage, "warm")
        reasons = ("limit_s = 120: raise it",)
        reporter.ended(Record(trial, 1, status, reasons, "", 120.0, CacheProof()))
    assert written.getvalue().splitlines() == [
        "train warm torch:jpeg: FAILED: limit_s = 120: raise it",
        "read warm torch:jpeg: FAILED: limit_s = 120: raise it",
    ]
