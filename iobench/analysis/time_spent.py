"""Records -> how long a suite took, and how much of that was inside measured loops."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from iobench.analysis.evidence import trial_window
from iobench.analysis.results import TimeSpent
from iobench.analysis.windows import ran_s
from iobench.core.records import Record

#: A longer gap between two attempts is a pause: the suite was stopped, and resumed.
PAUSE_S = 60.0


def time_spent(records: Iterable[Record]) -> TimeSpent:
    """Return the seconds from the first attempt to the last, without pauses, and those in loops.

    Of arms that take turns one runs at a time: their slices add up.
    """
    spans, loops_s = [], 0.0
    for record in records:
        if known := span(record):
            spans.append(known)
            loops_s += _loop_s(record)
    spans.sort()
    suite_s = reached = 0.0
    for began, ended in spans:
        start = reached if began - reached <= PAUSE_S else began
        suite_s += max(0.0, ended - start)
        reached = max(reached, ended)
    return TimeSpent(suite_s, loops_s)


def span(record: Record) -> tuple[float, float] | None:
    """Return when an attempt began and ended, in seconds; None for one of an earlier version."""
    if not record.started:
        return None
    began = datetime.datetime.fromisoformat(record.started).timestamp()
    return began, began + record.wall_s * record.at_once


def _loop_s(record: Record) -> float:
    if record.slices:
        return ran_s(record.slices)
    window = trial_window(record)
    return window.wall_s if window else 0.0
