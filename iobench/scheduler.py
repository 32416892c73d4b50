"""Runs a plan: one trial after the other, saved as it ends, resumable, interruptible.

The flow of a suite::

    prepare (dataset, forms) -> ladder -> choose bases -> paired blocks, look by look -> probes
    -> calls

After each look the groups that are decided end; the others get the blocks of their next look, while
the budget lasts.  A difference is then probed in both arms, and each arm's system calls are counted
once.  Every step is in plan.json before its first trial runs.

A pair is repeated only by a rule that is stated here, before any trial: when an arm is INVALID,
when rivals on the machine used more than 3 % of a trial's wall time in CPU (at least 0.1 s), or
when the hypervisor stole more than 1 %; at most ``max_repeated_pairs`` a contrast.  Both results
are kept.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import iobench
from iobench import calls, pairing, registry, sequence, timing, world
from iobench import plan as planning
from iobench.dataset import form_root
from iobench.figures import Evidence, enters, last_attempts, trial_window
from iobench.iocount import foreign_cpu_s
from iobench.launch import Settings, run_trial
from iobench.model import INVALID, Contrast, Dataset, Plan, Record, Trial
from iobench.pagecache import evict, warm
from iobench.spec import Spec, expand
from iobench.stats import FLOOR_PAIRS
from iobench.store import Store
from iobench.units import seconds

FOREIGN_SHARE, FOREIGN_FLOOR_S, STEAL_SHARE = 0.03, 0.1, 0.01
#: Attempts at a trial whose cache state is disproven; all are kept, the last counts.
ATTEMPTS = 3
APART = "run apart from its block, only to see whether it still fails"

#: Told of every change: (done trials, all trials now planned, seconds left, trial or None).
Watch = Callable[[int, int, float, Trial | None], None]


def make_plan(
    spec: Spec, dataset: Dataset, budget_s: float, created: str, notes: Sequence[str] = ()
) -> Plan:
    """Return phase 1 of a suite: every case on the dataset's mount, and the ladder's trials."""
    cases = tuple(dataclasses.replace(c, location=dataset.root) for c in expand(spec))
    return Plan(
        name=spec.name,
        created=created,
        seed=spec.seed,
        budget_s=budget_s,
        dataset=dataset,
        cases=cases,
        trials=tuple(planning.ladder(spec, cases, dataset.samples)),
        spec=spec.model_dump(mode="json", exclude_unset=True),
        version=iobench.__version__,
        notes=tuple(notes),
    )


def estimate_s(spec: Spec, plan: Plan) -> float:
    """Return a first guess of the whole suite's seconds, contrasts included."""
    ladder = sum(planning.guess_s(t, spec.compute_s) for t in plan.trials)
    contrasts = pairing.contrasts(spec, plan.cases, {})
    trials = pairing.blocks(contrasts, plan.cases, seed=plan.seed, start=1)
    return min(
        max(plan.budget_s, ladder),
        ladder + sum(planning.guess_s(t, spec.compute_s) for t in trials),
    )


class Suite:
    """A suite under way in its folder."""

    def __init__(self, store: Store, spec: Spec, settings: Settings, watch: Watch) -> None:
        self.store, self.spec, self.settings, self._watch = store, spec, settings, watch
        self.plan = store.plan()
        self._before = last_attempts(store.records())
        self._records = {i: r for i, r in self._before.items() if enters(r)}
        self._costs: dict[tuple[str, str, str], list[float]] = {}
        for record in self._records.values():
            self._note_cost(record)
        self._split = sequence.split_blocks(self.plan, self._records)
        for trial in itertools.chain(*self._split):  # their arms run again, back to back
            self._records.pop(trial.id, None)
        self._last = dict(self._records)
        self._begun = timing.clock()

    def run(self) -> None:
        """Run everything that has no usable record yet."""
        if len(self._records) < len(self.plan.trials):
            self._discard_cold_pass()
        while self._split:
            self._spare(self._split.pop(0))
        self._run(self.plan.trials)
        if self.plan.phase == 1:
            self._plan_contrasts()
        self._run(self.plan.trials)
        while self._plan_next_look():
            self._run(self.plan.trials)
        if self._plan_probes():
            self._run(self.plan.trials)
        if self._plan_calls():
            self._run(self.plan.trials)
        self._watch(len(self._records), len(self.plan.trials), 0.0, None)

    def _run(self, trials: Sequence[Trial]) -> None:
        """Run each trial; one that fails is tried again only by ``iobench run --resume``.

        An INVALID attempt, whatever it measured, is followed at once by another, three in all:
        kernels reclaim pages and neighbours read files at any time.
        """
        for trial in trials:
            if trial.id in self._last:
                continue
            self._try(trial)
            if trial.contrast and trial.stage != "probe":
                self._repeat_if_disturbed(trial)

    def _spare(self, block: Sequence[Trial]) -> None:
        """Keep the records of a block whose missing arms fail again: then no pair is to be made.

        They are tried alone first; where one does not fail, the whole block is run.
        """
        usable = {t.id: self._before[t.id] for t in block if self._usable_before(t)}
        missing = [t for t in block if t.id not in usable]
        if not usable or not missing or not sequence.in_one_go(block, usable):
            return
        if any(t.id not in self._before for t in missing):
            return
        works = [self._try(trial, apart=True) for trial in missing]
        if any(works):
            for trial in missing:
                self._last.pop(trial.id)
        else:
            self._records.update(usable)
            self._last.update(usable)

    def _usable_before(self, trial: Trial) -> bool:
        return trial.id in self._before and enters(self._before[trial.id])

    def _try(self, trial: Trial, *, apart: bool = False) -> bool:
        for _ in range(ATTEMPTS):
            works = self._attempt(trial, apart=apart)
            if works or self._last[trial.id].status != INVALID:
                return works
        return False

    def _attempt(self, trial: Trial, *, apart: bool) -> bool:
        """Run a trial once and keep its record; tell whether it is usable, or would be.

        ``apart``: away from its block, so no figure may use it.
        """
        self._watch(len(self._records), len(self.plan.trials), self.left_s(), trial)
        attempt = self.store.start(trial.id)
        record = run_trial(trial, self.plan.dataset, attempt, self.settings)
        works = enters(record)
        if works and apart:
            record = dataclasses.replace(record, status=INVALID, reasons=(APART,))
        self.store.save(record)
        if enters(record):
            self._records[trial.id] = record
        self._last[trial.id] = record
        self._note_cost(record)
        return works

    def left_s(self) -> float:
        """Return the expected seconds of what is still to do."""
        left = sum(self._cost(t) for t in self.plan.trials if t.id not in self._records)
        if self.plan.phase == 1:
            found = pairing.contrasts(self.spec, self.plan.cases, {})
            blocks = pairing.blocks(found, self.plan.cases, seed=0, start=1)
            room = self.plan.budget_s - (timing.clock() - self._begun) - left
            left += max(0.0, min(room, sum(self._cost(t) for t in blocks)))
        return left

    def _note_cost(self, record: Record) -> None:
        trial = record.trial
        key = (trial.case.label, trial.stage, trial.cache)
        self._costs.setdefault(key, []).append(record.wall_s)

    def _cost(self, trial: Trial) -> float:
        known = self._costs.get((trial.case.label, trial.stage, trial.cache))
        return median(known) if known else planning.guess_s(trial, self.spec.compute_s)

    def _discard_cold_pass(self) -> None:
        """Read every stored form once from cold: the first pass after writing is unlike others."""
        for root in {
            form_root(self.plan.dataset, c.stored_form): c for c in self.plan.cases
        }.items():
            folder, case = root
            form = registry.load("formats", case.format).make(**case.format_options)
            files: list[Path] = form.files(self.plan.dataset, folder)
            if files:
                evict(files)
                warm(files)

    # -- phase 2 -----------------------------------------------------------------------------

    def _plan_contrasts(self) -> None:
        contrasts = self._within_budget(
            pairing.contrasts(self.spec, self.plan.cases, self._fastest())
        )
        trials = pairing.blocks(
            contrasts, self.plan.cases, seed=self.plan.seed, start=len(self.plan.trials) + 1
        )
        self.plan = dataclasses.replace(self.plan, contrasts=tuple(contrasts), phase=2)
        self._extend(trials)

    def _extend(self, trials: Sequence[Trial]) -> None:
        self.plan = dataclasses.replace(self.plan, trials=(*self.plan.trials, *trials))
        self.store.save_plan(self.plan)

    def _evidence(self) -> Evidence:
        return Evidence(self.plan, self._last)

    def _plan_next_look(self) -> bool:
        """Plan the next look of every undecided group that the budget allows; tell if there is one.

        Stopping for the budget depends on no outcome, and unspent alpha is lost, not reused.
        """
        spans: dict[str, tuple[int, int]] = {}
        room = self._room_s()
        for group, span in sequence.spans_due(self._evidence()).items():
            cost = sum(self._cost(t) for t in self._blocks({group: span}))
            if cost <= room:
                room -= cost
                spans[group] = span
        if spans:
            self._extend(self._blocks(spans))
        return bool(spans)

    def _blocks(self, spans: pairing.Spans) -> list[Trial]:
        return pairing.blocks(
            self.plan.contrasts,
            self.plan.cases,
            seed=self.plan.seed,
            start=len(self.plan.trials) + 1,
            spans=spans,
        )

    def _plan_probes(self) -> bool:
        """Plan serial probes of both arms of each difference, while the budget lasts."""
        room, begun = self._room_s(), len(self.plan.trials)
        for found in sequence.probes_due(self._evidence()):
            trials = pairing.probe_blocks(
                found,
                self.plan.cases,
                seed=self.plan.seed,
                start=len(self.plan.trials) + 1,
                done=sequence.probed_blocks(self.plan, pairing.group_of(found[0])),
            )
            cost = sum(self._cost(t) for t in trials)
            if cost <= room:
                room -= cost
                self._extend(trials)
        return len(self.plan.trials) > begun

    def _plan_calls(self) -> bool:
        """Plan one traced trial an arm of each difference, while the budget lasts."""
        room, fitting = self._room_s(), []
        for trial in calls.trials(sequence.calls_due(self._evidence())):
            room -= self._cost(trial)
            if room >= 0:
                fitting.append(trial)
        if fitting:
            self._extend(planning.number(fitting, start=len(self.plan.trials) + 1))
        return bool(fitting)

    def _room_s(self) -> float:
        return self.plan.budget_s - (timing.clock() - self._begun)

    def _fastest(self) -> dict[tuple[str, str], list[str]]:
        """Return (stage, cache) -> case labels, fastest first, by the ladder's medians."""
        rates: dict[tuple[str, str], dict[str, list[float]]] = {}
        for record in self._records.values():
            trial, window = record.trial, trial_window(record)
            if window is not None and not trial.contrast:
                by_label = rates.setdefault((trial.stage, trial.cache), {})
                by_label.setdefault(trial.case.label, []).append(window.seconds_per_sample)
        return {key: sorted(d, key=lambda la: median(d[la])) for key, d in rates.items()}

    def _within_budget(self, contrasts: Sequence[Contrast]) -> list[Contrast]:
        """Set how many pairs each contrast gets: the spec's, or as many as the budget buys.

        Decided once, before the first pair: nobody looks at results and then adds more.  Where the
        spec plans several looks it says the numbers itself.
        """
        single = [dataclasses.replace(c, pairs=1, looks=()) for c in contrasts]
        round_s = sum(
            self._cost(t) for t in pairing.blocks(single, self.plan.cases, seed=0, start=1)
        )
        fit = int(self._room_s() // round_s) if round_s else 0
        bigger = self.plan.budget_s > seconds(self.spec.budget)

        def pairs(wanted: int) -> int:
            if bigger:
                return max(wanted, fit - fit % 2)
            return max(FLOOR_PAIRS, min(wanted, fit)) if wanted >= FLOOR_PAIRS else wanted

        return [c if c.looks else dataclasses.replace(c, pairs=pairs(c.pairs)) for c in contrasts]

    def _repeat_if_disturbed(self, trial: Trial) -> None:
        """Append one more block when the stated rule says that this one was disturbed."""
        if trial.repeat_of:
            return
        mine = [t for t in self.plan.trials if t.contrast == trial.contrast and t.stage != "probe"]
        block = [t for t in mine if t.block == trial.block and not t.repeat_of]
        if any(t.id not in self._last for t in block):
            return
        records = [self._last[t.id] for t in block]
        repeated = {t.repeat_of for t in mine if t.repeat_of}
        if len(repeated) >= self.spec.max_repeated_pairs or not any(map(disturbed, records)):
            return
        if str(trial.block) in repeated:
            return
        contrast = pairing.groups(self.plan.contrasts)[trial.contrast][0]
        again = pairing.block_of(
            contrast,
            {c.label: c for c in self.plan.cases},
            [t.case.label for t in block],
            1 + max(contrast.pairs, *(t.block for t in mine)),  # past those of later looks
            repeat_of=str(trial.block),
        )
        again = planning.number(again, start=len(self.plan.trials) + 1)
        self._extend(again)
        self._run(again)


def disturbed(record: Record | None) -> str:
    """Return why a trial's pair should be repeated, or "" when nothing disturbed it."""
    if record is None:
        return ""
    if record.status == INVALID:
        return record.reasons[0]
    io = world.together(record.ranks)  # a rank is no rival of another
    foreign = foreign_cpu_s(io)
    if foreign > max(FOREIGN_SHARE * io.wall_s, FOREIGN_FLOOR_S):
        return f"rivals used {foreign:.2f} s of CPU in {io.wall_s:.2f} s"
    if io.machine_steal_s > max(STEAL_SHARE * io.wall_s, 0.02):
        return f"the hypervisor stole {io.machine_steal_s:.2f} s in {io.wall_s:.2f} s"
    return ""
