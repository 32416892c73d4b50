"""A search as a suite that grows: the ceiling, then settings one by one, then the proof.

Every step is computed from the plan and the records, as in a suite, so a search that was killed
goes on where it stopped.  Settings that were measured once are never measured again by the search.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from iobench.core.cases import Case, Contrast, Plan, Trial
from iobench.equations.signed_rank import fewest_pairs
from iobench.equations.stats import ALPHA
from iobench.plan.blocks import blocks
from iobench.plan.ladder import compute_key, number, rungs_missing
from iobench.run.ledger import Ledger
from iobench.tune.bounds import Bounds
from iobench.tune.knobs import Knob
from iobench.tune.loops import epochs_of
from iobench.tune.search import Search
from iobench.tune.settings import TuneSettings
from iobench.tune.space import Space, defaults, key, named, space
from iobench.tune.tried import (
    Tried,
    at_ceiling,
    case_of,
    finals_of,
    limits_of,
    measured,
    nearly_all,
    ranked,
    stale,
    winner_of,
)

#: Rungs of the ladder: of the current settings before the search, of the winner after it.
RUNGS = ("read", "decode", "load", "compute", "train")
#: All trials before the proof, the ceiling's among them, are at most this share of the settings
#: that there are, of which at most so many are counted.  Below a fifth: parts of slow settings, and
#: finals, take longer than a setting does on average.
SHARE, COUNTED = 0.16, 600
#: A search may spend so many however few settings there are.
LEAST = 12
#: The ceiling is measured again where its headroom is below 1 + so many margins.
DOUBT = 3
#: A setting slower than the best so far by this factor ends early.
DOMINATED = 1.25
#: A pipeline is near the fastest one within this factor.
NEAR = 1.1
#: The search ends after so many settings that were no better.
PATIENCE = 12
#: So many settings are measured so many times more before one of them is the winner: usually, and
#: where fewer than so many trials may be spent.
FINALISTS, FINALS = 3, 2
FEW, FEW_FINALISTS, FEW_FINALS = 40, 2, 1
#: Pairs of the proof, if the time allows it; never fewer than give an interval.
PAIRS = 12
GROUP = "g01"


class Tuning:
    """One search in a suite's folder."""

    def __init__(self, folder: Path, asked: TuneSettings) -> None:
        self._folder, self.asked = folder, asked
        self._limits: Bounds | None = None
        self._search: Search | None = None
        self._waiting: tuple[int, str] | None = None  # trial of the study, label of its case
        self._known = 0  # settings that the study asked for again since the last new one
        self._may: int | None = None  # trials that may be spent before the proof

    def grow(self, plan: Plan, ledger: Ledger) -> Plan | None:
        """Return the plan with what is to be run next; None: the search has ended."""
        if plan.contrasts:
            return None
        records = list(ledger.last.values())
        found = self._limits or limits_of(plan, records, self.asked)
        if found is None:
            return None
        if self._limits is None and (again := _in_doubt(plan, found, self.asked)):
            return _with(plan, [], again)
        self._limits = found
        if at_ceiling(found, self.asked):
            return None
        tried = measured(plan, records, self.asked)
        longer = None
        if not finals_of(plan, self.asked):
            longer = self._next(plan, ledger, found, tried) or self._finals(plan, found, tried)
        return longer or self._proof(plan, ledger, found, winner_of(tried, self.asked))

    # -- the search --------------------------------------------------------------------------

    def _next(
        self, plan: Plan, ledger: Ledger, found: Bounds, tried: Sequence[Tried]
    ) -> Plan | None:
        """Return the plan with one more setting; None where searching has ended."""
        current = case_of(plan, self.asked.current)
        space_ = space(current, self.asked, found)
        if self._search is None:
            self._search = Search(self._folder, space_, plan.seed + len(tried))
        if again := [case_of(plan, t.label) for t in tried if t.doubtful and t.runs == 1]:
            epochs = epochs_of(plan, again[:1], self.asked, found)
            trial = Trial("", again[0], "train", self.asked.cache, block=1, epochs=epochs)
            return _with(plan, [], [trial])
        search, by_key = self._search, {key(case): case for case in plan.cases}
        rates = {t.label: t for t in tried}
        self._take(search, rates)
        best = max(t.samples_per_s or 0.0 for t in tried)
        self._known = 0
        starts = [case for case in space_.starts() if not space_.why_not(case)]
        done = {k for k, case in by_key.items() if case.label in rates}
        begun = all(key(case) in done for case in starts)
        steps = self._steps(plan, space_, tried, starts) if begun else []
        while not self._ended(plan, ledger, found, tried, len(starts)):
            if steps:
                search.enqueue(steps.pop(0))
            asked, case = search.ask()
            known = by_key.get(key(case))
            if known is not None and known.label in rates:
                self._known += 1
                self._waiting = asked, known.label
                self._take(search, rates)
            elif space_.why_not(case):
                self._known += 1
                search.tell(asked, None)
            else:
                case = known or named(case, current)
                self._waiting = asked, case.label
                trial = Trial(
                    "", case, "train", self.asked.cache, block=1, least=best / DOMINATED,
                    epochs=epochs_of(plan, [case], self.asked, found),
                )  # fmt: skip
                return _with(plan, [] if known else [case], [trial])
        return None

    def _steps(
        self, plan: Plan, space_: Space, tried: Sequence[Tried], starts: Sequence[Case]
    ) -> list[Case]:  # fmt: skip
        """Return one step that has not been tried, if there is one, from the best setting so far of
        a pipeline that is near the fastest.

        Knobs along which fewer steps were made in the pipeline come first.  After the first step
        along each knob, every second setting is the estimator's.
        """
        leaders = self._leaders(plan, tried)
        done = [case_of(plan, t.label) for t in tried]
        known = [case_of(plan, self.asked.current), *starts]

        def made(knob: Knob, pipeline: str) -> int:
            old = {knob.value(case) for case in known}
            return len({knob.value(c) for c in done if c.pipeline == pipeline} - old)

        rows = [space_.steps(case) for case in leaders]
        first = [
            (made(knob, leader.pipeline), rank, step)
            for leader, row in zip(leaders, rows, strict=True)
            for rank, (knob, step) in enumerate(row[0] if row else ())
        ]
        steps = [step for *_, step in sorted(first, key=lambda each: each[:2])]
        if len(tried) % 2:
            steps += [step for row in rows[:1] for later in row[1:] for _, step in later]
        keys = {key(case) for case in done}
        return [c for c in steps if key(c) not in keys and not space_.why_not(c)][:1]

    def _leaders(self, plan: Plan, tried: Sequence[Tried]) -> list[Case]:
        """Return the best setting of each pipeline that is near the fastest, fastest first.

        A pipeline may hand batches over faster than another, and need other settings for it.
        """
        able = [t for t in ranked(tried, self.asked, current=True) if t.label != self.asked.default]
        found: dict[str, Case] = {}
        for t in able:
            case = case_of(plan, t.label)
            if NEAR * (t.samples_per_s or 0.0) > (able[0].samples_per_s or 0.0):
                found.setdefault(case.pipeline, case)
        return list(found.values())[:FINALISTS]

    def _trials(self, plan: Plan) -> int:
        """Return how many trials may be spent before the proof."""
        if self._may is None:
            whole = space(case_of(plan, self.asked.current), self.asked, None)
            self._may = max(LEAST, int(SHARE * whole.count(COUNTED)))
        return self._may

    def _final_counts(self, plan: Plan) -> tuple[int, int]:
        """Return how many settings are measured again, and how many times."""
        few = self._trials(plan) < FEW
        return (FEW_FINALISTS, FEW_FINALS) if few else (FINALISTS, FINALS)

    def _take(self, search: Search, rates: Mapping[str, Tried]) -> None:
        """Enter what has been measured since the study asked for it."""
        if self._waiting is not None:
            asked, name = self._waiting
            self._waiting = None
            search.tell(asked, rates[name].samples_per_s, early=rates[name].early)

    def _ended(
        self, plan: Plan, ledger: Ledger, found: Bounds, tried: Sequence[Tried], first: int
    ) -> bool:  # fmt: skip
        """Return whether no more settings are tried: nothing better comes, or time is up.

        The ``first`` ones, every pipeline on all cores, are tried whatever the time is.
        """
        if nearly_all(found, tried, self.asked):
            return True
        if stale(tried) >= PATIENCE or self._known >= PATIENCE:
            return True
        searched = [t for t in tried if t.label not in (self.asked.current, self.asked.default)]
        if len(searched) < first:
            return False
        finalists, finals = self._final_counts(plan)
        if len(plan.trials) + finalists * finals >= self._trials(plan):
            return True
        trains = [r.wall_s for r in ledger.last.values() if r.trial.stage == "train"]
        spent = sum(r.wall_s for r in ledger.last.values())
        return spent + median(trains) + self._kept_s(plan, ledger, found) > self.asked.limit_s

    def _kept_s(self, plan: Plan, ledger: Ledger, found: Bounds) -> float:
        """Return seconds that the finals and the proof will need, at least."""
        arms = [case_of(plan, name) for name in (self.asked.current, self.asked.default) if name]
        epochs = epochs_of(plan, arms, self.asked, found, decides=True)
        trials = [Trial("", case, "train", self.asked.cache, epochs=epochs) for case in arms]
        longest = ledger.cost_s(trials[:1])
        finals = math.prod(self._final_counts(plan)) * longest
        return finals + fewest_pairs(ALPHA / max(1, len(arms))) * (ledger.cost_s(trials) + longest)

    # -- the proof ---------------------------------------------------------------------------

    def _finals(self, plan: Plan, found: Bounds, tried: Sequence[Tried]) -> Plan | None:
        """Return the plan with more trials of the best settings, in turn: the best of many noisy
        figures flatters itself.  None where the best is at the ceiling: no other can be faster.

        The leaders come first: settings of one pipeline differ by less than one trial shows.
        """
        finalists, finals = self._final_counts(plan)
        best = [case_of(plan, t.label) for t in ranked(tried, self.asked)]
        first = [case for case in self._leaders(plan, tried) if case in best]
        cases = [*first, *(case for case in best if case not in first)][:finalists]
        if len(cases) < 2 or nearly_all(found, tried, self.asked):
            return None
        epochs = epochs_of(plan, cases, self.asked, found, decides=True)
        more = [
            Trial("", case, "train", self.asked.cache, block=block, epochs=epochs)
            for block in range(2, finals + 2)
            for case in (cases if block % 2 else reversed(cases))
        ]
        return _with(plan, [], more)

    def _proof(self, plan: Plan, ledger: Ledger, found: Bounds, winner: str) -> Plan | None:
        """Return the plan with the winner's own ladder and its pairs; None where none has won."""
        if not winner:
            return None
        best = case_of(plan, winner)
        parts = [Trial("", best, stage, cache, block=1) for stage in self._parts(plan, best)
                 for cache in caches_of(stage, self.asked.cache)]  # fmt: skip
        known = {case.label for case in plan.cases}
        others = defaults(case_of(plan, self.asked.current), self.asked)
        others = others if self.asked.libraries and not self.asked.script else []
        plan = _with(plan, [case for case in others if case.label not in known], parts)
        bases = [self.asked.current, self.asked.default, *(case.label for case in others)]
        bases = [b for b in dict.fromkeys(bases) if b not in ("", winner)]
        cases = [case_of(plan, name) for name in (winner, *bases)]
        epochs = epochs_of(plan, cases, self.asked, found, decides=True)
        arms = [Trial("", case, "train", self.asked.cache, epochs=epochs) for case in cases]
        spent = sum(r.wall_s for r in ledger.last.values())
        left = self.asked.limit_s - spent - ledger.cost_s(parts)
        fewest = fewest_pairs(ALPHA / max(1, len(bases)))  # fewer can show nothing
        pairs = max(fewest, min(PAIRS, int(left // max(ledger.cost_s(arms), 1e-9))))
        contrasts = tuple(
            Contrast(
                id=f"c{i:02d}", arm=winner, base=base, stage="train", cache=self.asked.cache,
                margin=self.asked.margin, pairs=pairs, group=GROUP, epochs=epochs,
            )
            for i, base in enumerate(bases, 1)
        )  # fmt: skip
        drawn = blocks(contrasts, plan.cases, seed=plan.seed, start=len(plan.trials) + 1)
        return dataclasses.replace(plan, contrasts=contrasts, trials=(*plan.trials, *drawn))

    def _parts(self, plan: Plan, best: Case) -> list[str]:
        """Return the rungs that show what limits a case; one compute serves all that compute alike.

        A script's reading and decoding are not apart.
        """
        current = case_of(plan, self.asked.current)
        left_out = ["train", *rungs_missing(best)]
        left_out += ["compute"] * (compute_key(best) == compute_key(current))
        left_out += ["read", "decode"] * bool(self.asked.script)
        mount = ["ceiling"] * (self.asked.cache == "cold")
        return [stage for stage in (*mount, *RUNGS) if stage not in left_out]


def caches_of(stage: str, cache: str) -> tuple[str, ...]:
    """Return the cache states in which a part is measured: cold ones are judged beside warm."""
    if stage == "compute":
        return ("-",)
    if stage == "decode":
        return ("warm",)
    if stage == "ceiling":
        return ("cold",)
    return ("cold", "warm") if cache == "cold" and stage in ("read", "load") else (cache,)


def _in_doubt(plan: Plan, found: Bounds, asked: TuneSettings) -> list[Trial]:
    """Return the trials of the ceiling that are run again, once: both parts of the headroom where
    it is close to none, training where a loop of one epoch is too short.
    """
    current = case_of(plan, asked.current)
    again = any(t.block > 1 and t.case.label == asked.current for t in plan.trials)
    close = found.headroom < 1 + DOUBT * asked.margin
    epochs = epochs_of(plan, [current], asked, found)
    if again or not (close or epochs > 1):
        return []
    compute = Trial("", current, "compute", "-", block=2)
    train = Trial("", current, "train", asked.cache, block=2, epochs=epochs)
    return [compute, train] if close else [train]


def _with(plan: Plan, cases: Sequence[Case], trials: Sequence[Trial]) -> Plan:
    numbered = number(trials, start=len(plan.trials) + 1)
    return dataclasses.replace(plan, cases=(*plan.cases, *cases), trials=(*plan.trials, *numbered))
