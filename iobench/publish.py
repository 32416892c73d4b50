"""From a suite's raw records to everything that people and scripts read; safe to run again."""

from __future__ import annotations

import json
from typing import Any

from iobench.analysis import analyse
from iobench.model import EXPLORATORY, VALID
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


def complete(store: Store) -> bool:
    """Tell whether every planned trial has a usable record."""
    usable = {r.trial.id for r in store.records() if r.status in (VALID, EXPLORATORY)}
    plan = store.plan()
    return plan.phase == 2 and all(t.id in usable for t in plan.trials)
