"""From a suite's raw records to everything that people and scripts read; idempotent."""

from __future__ import annotations

import json
from typing import Any

from iobench.advise.explain import advise
from iobench.analysis import rates
from iobench.analysis.results import SuiteResult, to_json
from iobench.analysis.suite import analyse
from iobench.report import csv, html, tune_words, words
from iobench.run.store import Store, write_atomic
from iobench.tune.answer import TuneResult


def document(suite: SuiteResult) -> dict[str, Any]:
    """Return the analysis and its advice as JSON types: the content of ``analysis.json``."""
    return {**to_json(suite), "advice": [words.finding(f) for f in advise(suite)]}


def publish(store: Store, tuned: TuneResult | None = None) -> SuiteResult:
    """Write the tables, analysis.json and report.html beside the records; return the analysis.

    A search's report opens with what it found: ``tuned``, where the caller knows it already.
    """
    plan, records = store.plan(), store.records()
    suite = analyse(plan, records)
    tuned = tuned or tune_words.answer_of(store, plan, records)
    csv.write_csv(store.folder / "trials.csv", plan, records)
    write_atomic(store.folder / "rates.csv", csv.rates_text(rates.by(suite, rates.TOLD_APART)))
    write_atomic(store.folder / "analysis.json", json.dumps(document(suite), indent=1))
    html.write(store.folder / "report.html", plan, records, suite, tuned)
    return suite
