"""A trial as a suite runs it: what is INVALID runs again at once."""

from __future__ import annotations

from iobench.core.cases import Dataset, Trial
from iobench.core.records import INVALID, Record
from iobench.run.suite import ATTEMPTS
from iobench.run.trial import TrialSettings, run_trial


def attempted(trial: Trial, dataset: Dataset, settings: TrialSettings) -> Record:
    """Return the last of at most three attempts.

    The kernel may reclaim pages of the data, or have to read those of a library again, during any
    one: a warm trial of a few MB is INVALID then.
    """
    for attempt in range(1, ATTEMPTS + 1):
        record = run_trial(trial, dataset, attempt, settings)
        if record.status != INVALID:
            break
    return record
