"""Runs a plan: one trial after the other, saved as it ends, resumable, interruptible.

The flow of a suite::

    prepare (dataset, forms) -> ladder -> choose bases -> paired blocks, look by look -> probes
    -> calls

Every step is in plan.json before its first trial runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

from iobench.analysis.evidence import enters
from iobench.core import clock
from iobench.core.cases import Dataset, Plan, Trial
from iobench.core.dataset import files_of
from iobench.core.errors import CannotStop, DatasetError
from iobench.core.records import FAILED, INVALID, CacheProof, Record
from iobench.core.stages import PROBE
from iobench.host import scratch
from iobench.plan.blocks import beside, blocks, comparable
from iobench.plan.contrasts import contrasts, without_probe_turns, without_turns
from iobench.run import copies
from iobench.run.block import run_block
from iobench.run.ledger import NOT_STARTED, Ledger
from iobench.run.next_trials import Step, next_step
from iobench.run.store import Store
from iobench.run.trial import TrialSettings, run_trial

#: Attempts at a trial whose cache state is disproven; all are kept, the last counts.
ATTEMPTS = 3
APART = "run apart from its block, only to see whether it still fails"
#: Streams of the pass over each stored form that is discarded.
READERS = 4
#: Told of every change: (done trials, all trials now planned, seconds left, trial or None).
Watch = Callable[[int, int, float, Trial | None], None]
#: Called with the record of each attempt as it ends.
Ended = Callable[[Record], None]
#: Given the plan and what has run of it, when all of it has: the plan with more, or None.
Grow = Callable[[Plan, Ledger], Plan | None]
#: (trial, dataset, attempt, settings) -> the record of it.
RunTrial = Callable[[Trial, Dataset, int, TrialSettings], Record]


class Suite:
    """A suite under way in its folder."""

    def __init__(
        self, store: Store, settings: TrialSettings, watch: Watch, grow: Grow = lambda *_: None,
        run: RunTrial | None = None, ended: Ended = lambda _: None,
        compares: Callable[[Plan], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """``grow``, ``ended``: see there.  ``run``: in place of :func:`run_trial`.  ``compares``:
        given the plan when its comparisons are fixed, before the first pair.
        """
        self.store, self._watch, self._grow, self._ended = store, watch, grow, ended
        self.settings = dataclasses.replace(settings, keeps=store.columns)
        self._compares = compares
        self._reads = run is None  # trials of a script read what only that one knows
        self._run_trial = run or (lambda *given: run_trial(*given))
        self.plan = store.plan()
        if settings.enter:
            why = "they run in a control group"
            self.plan = without_probe_turns(without_turns(self.plan, why), why)
        self.ledger = Ledger(self.plan, store.records(), settings.agent.name())
        self._begun = clock.clock()
        self._undo = contextlib.ExitStack()

    def run(self) -> None:
        """Run everything that has no usable record yet.

        A trial that fails is tried again only by ``iobench run --resume``.
        """
        scratch.sweep()
        with self._undo:
            self._run()
        self._watch(len(self.ledger.usable()), len(self.plan.trials), 0.0, None)

    def _run(self) -> None:
        if self.ledger.split:
            self._discard_cold_pass()
        while self.ledger.split:
            self._spare(self.ledger.split.pop(0))
        while step := next_step(self.plan, self.ledger, self._room_s()) or self._grown():
            if step.plan is not self.plan:
                fixed = step.plan.phase > self.plan.phase
                self.plan = step.plan
                self.store.save_plan(step.plan)
                if fixed and step.plan.contrasts:
                    self._compares(step.plan)
            if step.trials:
                self._discard_cold_pass()
            if any(trial.slice_s for trial in step.trials):
                self._take_turns(step.trials)
                continue
            for trial in step.trials:
                self._try(trial)

    def _grown(self) -> Step | None:
        """Return the plan with more to run, None where nothing is to be added."""
        longer = self._grow(self.plan, self.ledger)
        if longer is None:
            return None
        self.plan = longer
        self.store.save_plan(longer)
        return Step(longer)

    def _spare(self, block: Sequence[Trial]) -> None:
        """Keep the records of a block whose missing arms fail again: then no pair is to be made.

        They are tried alone first; where one does not fail, the whole block is run.
        """
        failing = self.ledger.failing(block)
        works = [self._try(trial, apart=True) for trial in failing]
        if any(works):
            for trial in failing:
                self.ledger.last.pop(trial.id)
        elif works:
            self.ledger.keep(block)

    def _try(self, trial: Trial, *, apart: bool = False) -> bool:
        """Run a trial until it is not INVALID, three times at most; return whether it is usable."""
        for _ in range(ATTEMPTS):
            works = self._attempt(trial, apart=apart)
            if works or self.ledger.last[trial.id].status != INVALID:
                return works
        return False

    def _attempt(self, trial: Trial, *, apart: bool) -> bool:
        """Run a trial once and keep its record; return whether it is usable, or would be.

        ``apart``: away from its block, so no figure may use it.
        """
        if self._passed_over(trial, apart=apart):
            return False
        self._watch(len(self.ledger.usable()), len(self.plan.trials), self.left_s(), trial)
        attempt = self.store.start(trial.id)
        record = self._run_trial(trial, self.plan.dataset, attempt, self.settings)
        works = enters(record)
        if works and apart:
            record = dataclasses.replace(record, status=INVALID, reasons=(APART,))
        self._keep(record, apart=apart)
        return works

    def _in_vain(self, trial: Trial) -> str:
        """Return why running a trial can give no answer, "" where it can."""
        if reason := self.ledger.given_up(trial):
            return reason
        block = beside(self.plan, trial) if trial.contrast else ()
        left = [t for t in block if not self.ledger.given_up(t)]
        if len(left) == len(block) or trial in comparable(self.plan, left):
            return ""
        return f"{NOT_STARTED}what it is compared with was given up"

    def _passed_over(self, trial: Trial, *, apart: bool = False) -> bool:
        """Keep a record of a trial that can give no answer, which a resume tries again.

        Return whether it is one.
        """
        reason = self._in_vain(trial)
        if reason:
            attempt, started = self.store.start(trial.id), clock.utc("milliseconds")
            record = Record(trial, attempt, FAILED, (reason,), started, 0.0, CacheProof())
            self._keep(record, apart=apart)
        return bool(reason)

    def _keep(self, record: Record, *, apart: bool = False) -> None:
        self.store.save(record)
        self.ledger.add(record, apart=apart)
        self._ended(record)

    def _take_turns(self, block: Sequence[Trial]) -> None:
        """Run a block whose arms take turns until none is INVALID, three times at most.

        Where an arm FAILED that has worked before, the block runs again, once.  Where it fails then
        too, or has never worked, the others that are compared with each other run again without it.
        Where this user may not stop an arm, arms run one after the other from now on.
        """
        block = [trial for trial in block if not self._passed_over(trial)]
        if not block:
            return
        try:
            copies.make(block, self.plan.dataset, self.settings, self._undo)
        except DatasetError as error:
            self._end_turns(str(error), cache=block[0].cache)
            return
        again = False
        for _ in range(ATTEMPTS):
            self._watch(len(self.ledger.usable()), len(self.plan.trials), self.left_s(), block[0])
            attempts = [self.store.start(trial.id) for trial in block]
            try:
                records = run_block(block, self.plan.dataset, attempts, self.settings)
            except CannotStop as error:
                self._end_turns(str(error), probes=block[0].stage == PROBE)
                return
            for record in records:
                self._keep(record)
            statuses = {record.status for record in records}
            if INVALID not in statuses:
                return
            failed = [r.trial for r in records if r.status == FAILED]
            if failed and not again and all(map(self.ledger.works, failed)):
                again = True
                continue
            block = comparable(self.plan, [t for t in block if t not in failed])
            if len(block) < 2:
                return

    def _end_turns(self, reason: str, cache: str = "", *, probes: bool = False) -> None:
        """Run arms, or serial probes, one after the other from now on.

        ``cache``: arms in this cache state.
        """
        if probes:
            self.plan = without_probe_turns(self.plan, reason)
        else:
            self.plan = without_turns(self.plan, reason, cache)
        self.store.save_plan(self.plan)

    def left_s(self) -> float:
        """Return the expected seconds of what is still to do."""
        done = self.ledger.usable()
        left = self.ledger.cost_s([t for t in self.plan.trials if t.id not in done])
        if self.plan.phase == 1:
            found = contrasts(self.plan.rules, {})
            more = self.ledger.cost_s(blocks(found, self.plan.cases, seed=0, start=1))
            left += max(0.0, min(self._room_s() - left, more))
        return left

    def _room_s(self) -> float:
        return self.plan.budget_s - (clock.clock() - self._begun)

    def _discard_cold_pass(self) -> None:
        """Read every stored form once from cold: the first pass after writing is unlike others.

        Its rate also judges warm data that cannot be locked.  Those read before are left alone.
        """
        cases = {c.folder: c for c in self.plan.cases} if self._reads else {}
        for folder, case in cases.items():
            if folder in self.settings.cold_rates:
                continue
            if files := files_of(case, self.plan.dataset):
                agent = self.settings.agent
                agent.evict(files)
                begun = clock.clock()
                agent.warm(files, threads=READERS)
                nbytes, took_s = sum(f.stat().st_size for f in files), clock.clock() - begun
                self.settings.cold_rates[folder] = nbytes / took_s / READERS
