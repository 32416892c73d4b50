"""How far a suite is: from its plan, journal and records, and from its batch job."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from iobench.analysis.evidence import enters, last_attempts
from iobench.core.errors import ResultsError
from iobench.core.jobs import ENDED, QUEUED, RUNNING, JobState
from iobench.host import locks
from iobench.run import jobs, store
from iobench.run.ledger import Ledger
from iobench.run.next_trials import next_step

#: Of a results root so many suites are asked for, the latest: each costs a call of a program.
RECENT = 20
COMPLETE, STOPPED = "complete", "stopped"


@dataclasses.dataclass(frozen=True)
class SuiteProgress:
    """``state``: queued, running, complete or stopped (before its end).

    ``planned``, ``usable``: trials; 0 planned: the plan is not made yet.  ``growing``: it has no
    comparisons yet, which follow from the ladder.  ``attempts``: status ->
    trials whose last attempt ended so.  ``now``: the trial that runs.  ``left_s``: estimated.
    ``by``: who runs it.  ``starts``: of the job's script.  ``next``: what to do, in words.
    """

    folder: str
    state: str
    planned: int
    usable: int
    growing: bool
    attempts: Mapping[str, int]
    now: str
    left_s: float
    by: str
    job: jobs.SubmittedJob | None
    job_state: JobState | None
    starts: Sequence[str]
    next: str


def together(results: Path) -> list[SuiteProgress]:
    """Return how far the suite at ``results`` is, those that were submitted with it, and others
    beside them whose jobs wait or run; the batch system is asked once for each.

    A suite's own folder is that suite alone.
    """
    folder = store.folder_at(results)
    if folder == results.resolve():
        return [_progress(folder, jobs.state_of(folder))]
    job = jobs.of(folder)
    beside = [folder.with_name(name) for name in job.together] if job else []
    asked = [each for each in beside if each.is_dir()] or [folder]
    others = [path.parent for path in sorted(folder.parent.glob(f"*/{store.JOB}"))][-RECENT:]
    known = {*asked, folder.parent / "latest"}
    live = {each: found for each in others if each not in known and (found := _live(each))}
    here = live | {own: jobs.state_of(own) for own in asked}
    return [_progress(*each) for each in here.items()]


def _live(folder: Path) -> jobs.Asked | None:
    """Return a suite's job that waits or runs, None where there is none."""
    with contextlib.suppress(ResultsError):
        found = jobs.state_of(folder)
        return found if found and found[1].state in (QUEUED, RUNNING) else None
    return None


def _progress(folder: Path, found: jobs.Asked | None) -> SuiteProgress:
    """Look at a suite's folder; ``found``: its job, where it was submitted."""
    job, job_state = found or (None, None)
    holder = locks.named(folder)
    done = _Done(folder)
    state = _state(done, job_state, holder)
    running = state == RUNNING
    return SuiteProgress(
        folder=str(folder),
        state=state,
        planned=done.planned,
        usable=done.usable,
        growing=done.growing,
        attempts=done.attempts,
        now=done.now if running else "",
        left_s=done.left_s,
        by=str(holder) if holder and running else "",
        job=job,
        job_state=job_state,
        starts=jobs.starts(folder),
        next=_next(folder, state, done, job),
    )


class _Done:
    """What plan, journal and records of a suite say."""

    def __init__(self, folder: Path) -> None:
        self.planned, self.usable, self.left_s, self.now = 0, 0, 0.0, ""
        self.attempts: dict[str, int] = {}
        self.complete = self.growing = False
        if not (folder / "plan.json").exists():
            return
        suite = store.Store(folder)
        plan, records = suite.plan(), suite.records()
        ledger = Ledger(plan, records)
        usable = {r.trial.id for r in last_attempts(records).values() if enters(r)}
        self.planned, self.usable = len(plan.trials), len(usable)
        self.growing = plan.phase == 1 and bool(plan.rules)
        self.attempts = dict(Counter(r.status for r in last_attempts(records).values()))
        self.left_s = ledger.cost_s([t for t in plan.trials if t.id not in usable])
        for record in ledger.before.values():  # a run tries what failed no more
            ledger.add(record, apart=True)
        self.complete = next_step(plan, ledger, 0.0) is None
        self.now = suite.begun_last({(r.trial.id, r.attempt) for r in records})

    @property
    def failed(self) -> int:
        """How many trials have ended, and enter no figure."""
        return sum(self.attempts.values()) - self.usable


def _state(done: _Done, job: JobState | None, holder: locks.Holder | None) -> str:
    if job and job.state == QUEUED:
        return COMPLETE if done.complete else QUEUED
    if done.complete and not holder:
        return COMPLETE
    if holder and (holder.runs or (holder.elsewhere and not (job and job.state == ENDED))):
        return RUNNING
    if job and job.state == RUNNING:
        return RUNNING
    return COMPLETE if done.complete else STOPPED


def _next(folder: Path, state: str, done: _Done, job: jobs.SubmittedJob | None) -> str:
    log = f"see {folder / 'job.log'}; " if job else ""
    if state == COMPLETE:
        lost = done.planned - done.usable
        again = f"; {lost} trials have no usable result: {store.resume_command(folder)} tries them"
        return f"`iobench show {folder}`{again if lost else ''}"
    if state == STOPPED:
        return f"{log}{store.resume_command(folder)} goes on with it{' in a new job' * bool(job)}"
    if state == RUNNING and not done.planned and job:
        return f"{log}it makes data and plan"
    return ""
