"""What has run of a plan, as far as it counts; a resume rebuilds it from the stored records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from iobench.analysis import hosts
from iobench.analysis.evidence import enters, last_attempts, trial_window
from iobench.analysis.pairs import one_go
from iobench.core import stages
from iobench.core.cases import Plan, Trial
from iobench.core.records import FAILED, Record
from iobench.plan.cost import guess_s

#: After so many failures of so many, more of them only cost time.
GIVE_UP = 3
#: How the reason of a trial begins that was passed over therefore.
NOT_STARTED = "not started: "


class Ledger:
    """The last attempts of a suite's trials, from records in the order in which they began.

    ``before``: trial id -> last attempt of earlier runs.  ``last``: trial id -> last attempt that
    counts: of earlier runs the usable ones of whole blocks, of this run every one.  ``split``:
    blocks of earlier runs that do not count as they are.  ``strays``: records of the ladder that
    do not count on ``host``.  ``latest``: the trial that ran last.
    """

    def __init__(self, plan: Plan, records: Iterable[Record], host: str = "") -> None:
        self.before = last_attempts(records)
        self._compute_s, self._samples = plan.compute_s, plan.dataset.samples
        self._costs: dict[tuple[Any, ...], list[float]] = {}
        self._worked: set[tuple[Any, ...]] = set()  # kinds of trials
        self._failed: dict[tuple[Any, ...], list[str]] = {}  # in this run, and why
        self._parts: dict[
            tuple[str, ...], list[tuple[float, float]]
        ] = {}  # around a loop, an epoch
        done = {i: r for i, r in self.before.items() if enters(r)}
        for record in done.values():
            self._note_cost(record)
            self._worked.add(_kind(record.trial))
        self.strays = _strays(plan, done, host) if host else []
        done = {i: r for i, r in done.items() if i not in self.strays}
        self.split = split_blocks(plan, done)
        again = {trial.id for block in self.split for trial in block}  # back to back
        self.last = {i: r for i, r in done.items() if i not in again}
        self.latest: Trial | None = None

    def add(self, record: Record, *, apart: bool = False) -> None:
        """Enter an attempt; ``apart``: away from its block."""
        self.last[record.trial.id] = record
        self.latest = None if apart else record.trial
        self._note_cost(record)
        if enters(record):
            self._worked.add(_kind(record.trial))
        elif record.status == FAILED:
            why = next(iter(record.reasons), "no reason given")
            if not why.startswith(NOT_STARTED):
                self._failed.setdefault(_kind(record.trial), []).append(why)

    def given_up(self, trial: Trial) -> str:
        """Return why a trial is not worth its start, "" where it is.

        All trials of its kind have failed in this run, three or more, or all of its case, of three
        kinds or more, and none has worked before.
        """
        kind, label = _kind(trial), trial.case.label
        why = self._failed.get(kind, [])
        if len(why) >= GIVE_UP and kind not in self._worked:
            return f"{NOT_STARTED}it failed {len(why)} times of {len(why)}: {why[0]}"
        kinds = [reasons[0] for other, reasons in self._failed.items() if other[0] == label]
        if len(kinds) >= GIVE_UP and all(other[0] != label for other in self._worked):
            many = f"{len(kinds)} of {len(kinds)} stages and cache states"
            return f"{NOT_STARTED}its case failed in {many}: {kinds[0]}"
        return ""

    def works(self, trial: Trial) -> bool:
        """Return whether a trial of its kind has worked before."""
        return _kind(trial) in self._worked

    def usable(self) -> dict[str, Record]:
        """Return trial id -> record, of those that may enter a figure."""
        return {i: r for i, r in self.last.items() if enters(r)}

    def failing(self, block: Sequence[Trial]) -> list[Trial]:
        """Return the trials of a split block that failed before while all of its others count.

        Where they fail again, tried alone, the others' records can be kept (:meth:`keep`).
        """
        usable = self._usable_before(block)
        failed = [t for t in block if t.id not in usable]
        tried = all(t.id in self.before for t in failed)
        return failed if usable and tried and in_one_go(block, usable) else []

    def keep(self, block: Sequence[Trial]) -> None:
        """Let the usable records of a split block count as they are."""
        self.last.update(self._usable_before(block))

    def cost_s(self, trials: Iterable[Trial]) -> float:
        """Return what such trials took so far (the median of each), or a first guess; seconds."""
        return sum(self._trial_s(trial) for trial in trials)

    def _trial_s(self, trial: Trial) -> float:
        if known := self._costs.get(_kind(trial)):
            return float(median(known))
        if alike := self._parts.get(_alike(trial)):
            around_s, epoch_s = (float(median(part)) for part in zip(*alike, strict=True))
            return around_s + trial.all_epochs * epoch_s
        return guess_s(trial, self._compute_s)

    def _usable_before(self, block: Sequence[Trial]) -> dict[str, Record]:
        of_block = {t.id for t in block}
        return {i: r for i, r in self.before.items() if i in of_block and enters(r)}

    def _note_cost(self, record: Record) -> None:
        self._costs.setdefault(_kind(record.trial), []).append(record.wall_s)
        window = trial_window(record)
        if window is not None and not record.slices:
            epoch_s = window.seconds_per_sample * (record.trial.case.samples or self._samples)
            parts = record.wall_s - record.trial.all_epochs * epoch_s, epoch_s
            self._parts.setdefault(_alike(record.trial), []).append(parts)


def _strays(plan: Plan, done: Mapping[str, Record], host: str) -> list[str]:
    """Return the ladder's records that are to be made again on ``host``: it is of one host alone.

    None where another host has run all of it.
    """
    ladder = [t.id for t in plan.trials if hosts.on_ladder(t)]
    known = {hosts.host_of(done[i]) for i in ladder if i in done} - {""}
    whole = len(known) < 2 and all(i in done for i in ladder)
    return [] if whole else [i for i in ladder if i in done and not hosts.is_of(done[i], host)]


def _kind(trial: Trial) -> tuple[Any, ...]:
    """Return what trials share that take alike long."""
    return trial.case.label, trial.stage, trial.cache, trial.epochs, trial.slice_s > 0


def _alike(trial: Trial) -> tuple[str, ...]:
    """Return what trials share whose loops take alike long an epoch, whatever runs them."""
    case = trial.case
    trains = (case.trainer, str(case.trainer_options)) if stages.of(trial.stage).trained else ()
    return (case.pipeline, trial.stage, trial.cache, *trains)


def split_blocks(plan: Plan, done: Mapping[str, Record]) -> list[list[Trial]]:
    """Return the trials of each block that was not run whole, back to back, on one host.

    ``done``: in the order in which the attempts began.
    """
    blocks: dict[tuple[str, str, int], list[Trial]] = {}
    for trial in plan.trials:
        if trial.contrast:
            blocks.setdefault((trial.contrast, trial.stage, trial.block), []).append(trial)
    return [
        trials
        for trials in blocks.values()
        if any(t.id not in done for t in trials) or not in_one_go(trials, done)
    ]


def in_one_go(trials: Sequence[Trial], done: Mapping[str, Record]) -> bool:
    """Tell whether the trials that have records are of one go (:func:`one_go`).

    ``done``: in the order in which the attempts began.
    """
    of_block = {t.id for t in trials}
    return one_go([record for i, record in done.items() if i in of_block])
