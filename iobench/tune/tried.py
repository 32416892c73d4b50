"""What the trials of a search gave: rates, what limits the current settings, who leads."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Sequence
from statistics import median

from iobench.analysis.disturbance import disturbed
from iobench.analysis.evidence import enters, trial_window
from iobench.analysis.suite import analyse
from iobench.core.cases import Case, Plan, Trial
from iobench.core.records import Record
from iobench.tune.bounds import Bounds, bounds
from iobench.tune.settings import TuneSettings

#: A setting is better than the best so far from this factor on.
BETTER = 1.02


@dataclasses.dataclass(frozen=True)
class Tried:
    """One setting that the search measured: the median rate of its longest whole trials, or of its
    finals alone where it has some: it was not chosen by these.

    ``early``: it was dominated, and ended before its last step; ``doubtful``: while others used the
    cores.  ``finals``: how many of its ``runs`` were finals.  ``wall_s``: of all of its trials.
    """

    label: str
    samples_per_s: float | None
    early: bool
    runs: int
    wall_s: float
    reason: str = ""
    doubtful: bool = False
    finals: int = 0


def case_of(plan: Plan, name: str) -> Case:
    """Return the plan's case of this label."""
    return next(case for case in plan.cases if case.label == name)


def limits_of(plan: Plan, records: Sequence[Record], asked: TuneSettings) -> Bounds | None:
    """Return what limits the current settings, from the ladder that they ran."""
    current = case_of(plan, asked.current)
    mine = [t for t in plan.trials if not t.contrast and t.case.label == asked.current]
    ids = {t.id for t in mine if t.stage == "train"}
    longest = max((r.trial.epochs for r in records if r.trial.id in ids and enters(r)), default=1)
    mine = [t for t in mine if t.stage != "train" or t.epochs == longest]
    alone = dataclasses.replace(plan, cases=(current,), trials=tuple(mine), contrasts=(), phase=2)
    ids = {t.id for t in mine}
    suite = analyse(alone, [r for r in records if r.trial.id in ids])
    trains_here = current.trainer == "torch" and not current.trains_on_gpu
    return bounds(suite.pipelines[0], asked.cache, cores=asked.cores, trains_here=trains_here)


def _trains(plan: Plan, asked: TuneSettings) -> list[Trial]:
    """Return the trials whose rates are compared, the pairs of the proof left out."""
    return [
        t for t in plan.trials
        if t.stage == "train" and t.cache == asked.cache and not t.contrast
    ]  # fmt: skip


def finals_of(plan: Plan, asked: TuneSettings) -> list[Trial]:
    """Return the trials of settings that are measured again before one of them is the winner."""
    return [t for t in _trains(plan, asked) if t.block > 1 and t.case.label != asked.current]


def measured(plan: Plan, records: Iterable[Record], asked: TuneSettings) -> list[Tried]:
    """Return what every setting gave, in the order in which they were tried.

    The current settings and the library's defaults come first.
    """
    last = {r.trial.id: r for r in records}
    by_label: dict[str, list[Record]] = {asked.current: [], asked.default: []}
    for trial in _trains(plan, asked):
        if trial.id in last:
            by_label.setdefault(trial.case.label, []).append(last[trial.id])
    finals = {t.id for t in finals_of(plan, asked)}
    return [_tried(name, runs, finals) for name, runs in by_label.items() if runs]


def _tried(name: str, runs: Sequence[Record], finals: Container[str]) -> Tried:
    measured = [(r, w) for r in runs if enters(r) and (w := trial_window(r))]
    whole = [(r, w) for r, w in measured if not _early(r)] or measured
    whole = [(r, w) for r, w in measured if r.trial.id in finals] or whole
    longest = max((r.trial.epochs for r, _ in whole), default=0)
    windows = [w for r, w in whole if r.trial.epochs == longest]
    reason = "" if measured else "; ".join(runs[-1].reasons)
    return Tried(
        label=name,
        samples_per_s=1 / median(w.seconds_per_sample for w in windows) if windows else None,
        early=bool(measured) and all(_early(r) for r, _ in measured),
        runs=len(runs),
        wall_s=sum(r.wall_s for r in runs),
        reason=reason,
        doubtful=any(_early(r) and disturbed(r) for r in runs),
        finals=sum(r.trial.id in finals for r in runs),
    )


def _early(record: Record) -> bool:
    """Return whether a trial ended before its last step."""
    trial = record.trial
    if not trial.least or not record.ranks:
        return False
    return bool(record.ranks[0].notes.get("ended_early"))


def nearly_all(found: Bounds, tried: Sequence[Tried], asked: TuneSettings) -> bool:
    """Return whether the best setting is as fast as the compute alone."""
    best = max(t.samples_per_s or 0.0 for t in tried)
    return best * BETTER >= found.compute and not asked.batches


def at_ceiling(found: Bounds, asked: TuneSettings) -> bool:
    """Return whether training is as fast as its compute alone.  Other batches, other ceilings."""
    return found.headroom < 1 + asked.margin and not asked.batches


def stale(tried: Sequence[Tried]) -> int:
    """Return how many settings have been tried since the last that was better."""
    best, since = 0.0, 0
    for each in tried:
        rate = each.samples_per_s or 0.0
        since = 0 if rate > BETTER * best else since + 1
        best = max(best, rate)
    return since


def winner_of(tried: Sequence[Tried], asked: TuneSettings) -> str:
    """Return the label of the fastest setting; "" where none is faster than the current ones.

    Where the best were measured several times, of those alone.
    """
    able = ranked(tried, asked)
    most = max((t.finals for t in able), default=0)
    best = next((t for t in able if t.finals == most), None)
    now = next((t.samples_per_s for t in tried if t.label == asked.current), None) or 0.0
    return best.label if best and (best.samples_per_s or 0.0) > now else ""


def ranked(tried: Sequence[Tried], asked: TuneSettings, *, current: bool = False) -> list[Tried]:
    """Return the settings that ran to their end, fastest first, the ``current`` ones if asked."""
    able = [t for t in tried if t.samples_per_s and not t.early]
    able = [t for t in able if current or t.label != asked.current]
    return sorted(able, key=lambda t: -(t.samples_per_s or 0.0))
