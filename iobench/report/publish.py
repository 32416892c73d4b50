"""From a suite's raw records to everything that people and scripts read; safe to run again."""

from __future__ import annotations

import json
from typing import Any

from iobench.analysis import analyse
from iobench.report import csv, html
from iobench.store import Store, write_atomic


def publish(store: Store) -> dict[str, Any]:
    """Write trials.csv, analysis.json and report.html beside the records; return the analysis."""
    plan, records = store.plan(), store.records()
    analysis = analyse(plan, records)
    csv.write_csv(store.folder / "trials.csv", plan, records)
    write_atomic(store.folder / "analysis.json", json.dumps(analysis, indent=1))
    html.write(store.folder / "report.html", plan, records, analysis)
    return analysis
