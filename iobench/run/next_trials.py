"""What a suite runs next, from its plan and what has run.  Pure.

The plan grows look by look.  Whatever decides here is computed from the plan and the records, as
the report does it, so a suite that was killed at any point goes on as if it had not been.
"""

from __future__ import annotations

import dataclasses
import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import ceil
from statistics import median
from typing import NamedTuple

from iobench.analysis.attribution import FOUND, can_probe
from iobench.analysis.disturbance import disturbed
from iobench.analysis.evidence import Evidence, trial_window
from iobench.analysis.verdicts import judged
from iobench.core import stages
from iobench.core.cases import Contrast, Plan, Trial
from iobench.core.records import FAILED
from iobench.plan.blocks import (
    Spans,
    beside,
    block_of,
    blocks,
    first_look,
    group_of,
    groups,
    members,
    probe_blocks,
)
from iobench.plan.contrasts import contrasts, fewest_of
from iobench.plan.ladder import digest_of, number
from iobench.run.later_looks import in_pair, planned_blocks, promising, spans_due
from iobench.run.ledger import Ledger

#: More would be a list of ids that takes longer to make than the loop.
MOST_EPOCHS = 1000
#: Fewer pairs more change no verdict worth their start.
FEWEST_MORE = 3


class Step(NamedTuple):
    """The plan from now on, to be stored first, and the trials to run at once, in order."""

    plan: Plan
    trials: tuple[Trial, ...] = ()


def next_step(plan: Plan, ledger: Ledger, room_s: float) -> Step | None:
    """Return what to do next; None: the suite is complete.

    ``room_s``: seconds of the budget that are left.  A trial that has a record in this run is not
    run again; the block of the last one is repeated where it was disturbed.
    """
    if again := _repeat(plan, ledger):
        return _extended(plan, again, at_once=True)
    for trial in plan.trials:
        if trial.id not in ledger.last:
            return Step(plan, _at_once(plan, trial))
    if plan.phase == 1:
        return _second_phase(plan, ledger, room_s)
    if step := _next_looks(plan, ledger, room_s):
        return step
    for due_ in (_probes, _calls):
        if found := due_(plan, ledger, room_s):
            return _extended(plan, found)
    return None


def _at_once(plan: Plan, trial: Trial) -> tuple[Trial, ...]:
    """Return the trial, or all arms of its block where they take turns."""
    return beside(plan, trial) if trial.slice_s else (trial,)


def _extended(plan: Plan, trials: Sequence[Trial], *, at_once: bool = False) -> Step:
    longer = dataclasses.replace(plan, trials=(*plan.trials, *trials))
    return Step(longer, tuple(trials) if at_once else ())


def _repeat(plan: Plan, ledger: Ledger) -> list[Trial]:
    """Return one more block where the last trial ended one that the stated rule repeats."""
    last = ledger.latest
    if last is None or not last.contrast or last.repeat_of or not in_pair(last):
        return []
    mine = [t for t in plan.trials if t.contrast == last.contrast and in_pair(t)]
    block = [t for t in mine if t.block == last.block and not t.repeat_of]
    repeated = {t.repeat_of for t in mine if t.repeat_of}
    if any(t.id not in ledger.last for t in block) or str(last.block) in repeated:
        return []
    enough = len(repeated) >= plan.max_repeated_pairs
    records = [ledger.last[t.id] for t in block]
    if enough or any(r.status == FAILED for r in records) or not any(map(disturbed, records)):
        return []
    contrast = groups(plan.contrasts)[last.contrast][0]
    again = block_of(
        contrast,
        {c.label: c for c in plan.cases},
        [t.case.label for t in block],
        1 + max(contrast.pairs, *(t.block for t in mine)),  # past those of later looks
        random.Random(f"{plan.seed}-{last.contrast}-{last.block}"),
        repeat_of=str(last.block),
    )
    return number(again, start=len(plan.trials) + 1)


def _second_phase(plan: Plan, ledger: Ledger, room_s: float) -> Step:
    """Make the contrasts by the ladder's ranking, the digests of their arms, and their blocks up to
    the first look.
    """
    found = lengthened(plan, contrasts(plan.rules, _fastest(ledger)), ledger)
    first = number(_digests(plan, found), start=len(plan.trials) + 1)
    found = within_budget(plan, found, ledger, room_s - ledger.cost_s(first))
    start = len(plan.trials) + len(first) + 1
    trials = blocks(found, plan.cases, seed=plan.seed, start=start)
    fixed = dataclasses.replace(plan, contrasts=tuple(found), phase=2)
    return _extended(fixed, [*first, *trials])


def _digests(plan: Plan, found: Sequence[Contrast]) -> list[Trial]:
    """Return the digests, where the ladder makes any, of arms that are not on the ladder."""
    digested = {trial.case.label for trial in plan.trials if trial.stage == "digest"}
    due = {label for c in found for label in (c.arm, c.base)} - digested
    cases = [case for case in plan.cases if digested and case.label in due]
    return [trial for case in cases for trial in digest_of(case)]


def _fastest(ledger: Ledger) -> dict[tuple[str, str], list[str]]:
    """Return (stage, cache) -> case labels, fastest first, by the ladder's medians."""
    times: dict[tuple[str, str], dict[str, list[float]]] = {}
    for record in ledger.usable().values():
        trial, window = record.trial, trial_window(record)
        if window is not None and not trial.contrast:
            of_rung = times.setdefault((trial.stage, trial.cache), {})
            of_rung.setdefault(trial.case.label, []).append(window.seconds_per_sample)
    return {rung: sorted(t, key=lambda label: median(t[label])) for rung, t in times.items()}


def lengthened(plan: Plan, found: Sequence[Contrast], ledger: Ledger) -> list[Contrast]:
    """Set, before the first pair, how many epochs the arms that take turns run for: ``loop_s``.

    By the slowest arm's rate on the ladder, or its first guess: all arms of a group run alike.
    """
    seconds: dict[tuple[str, str, str], list[float]] = {}
    for record in ledger.usable().values():
        trial, measured = record.trial, trial_window(record)
        if measured is not None:
            key = (trial.case.pipeline, trial.stage, trial.cache)
            seconds.setdefault(key, []).append(measured.seconds_per_sample)
    cases = {case.label: case for case in plan.cases}

    def epoch_s(label: str, contrast: Contrast) -> float:
        case = cases[label]
        known = seconds.get((case.pipeline, contrast.stage, contrast.cache))
        rate = stages.of(contrast.stage).rate * max(case.workers, 1)
        return (case.samples or plan.dataset.samples) * (median(known) if known else 1 / rate)

    def epochs(contrast: Contrast) -> int:
        together = groups(found)[group_of(contrast)]
        longest_s = max(epoch_s(label, contrast) for label in members(together))
        again = contrast.slice_s and contrast.cache == "warm"  # a second epoch is never cold
        return min(ceil(contrast.loop_s / longest_s), MOST_EPOCHS) if again else 1

    return [dataclasses.replace(c, epochs=epochs(c)) for c in found]


def within_budget(
    plan: Plan, found: Sequence[Contrast], ledger: Ledger, room_s: float
) -> list[Contrast]:
    """Set, before the first pair, how many each contrast gets: the spec's, or what the budget buys,
    but no fewer than have simultaneous limits.

    Of several looks the first comes earlier where the budget does not reach it; the last stays, for
    the time that may be left.  A larger budget than the spec's adds one.
    """
    single = [dataclasses.replace(c, pairs=1, looks=()) for c in found]
    round_s = {
        group: ledger.cost_s(blocks(together, plan.cases, seed=0, start=1))
        for group, together in groups(single).items()
    }
    first = {group_of(c): first_look(c) for c in found}
    fewest = {group: fewest_of(found, together) for group, together in groups(found).items()}

    def cost_s(pairs: int) -> float:
        """Return what so many pairs of each contrast cost, none more than up to its first look."""
        return sum(min(pairs, first[group]) * seconds for group, seconds in round_s.items())

    more = plan.budget_s > plan.usual_budget_s
    fit = bisect_right(range(1 + max(first.values(), default=0)), room_s, key=cost_s) - 1
    bought = int(room_s // max(sum(round_s.values()), 1e-9)) // 2 * 2

    def within(contrast: Contrast) -> Contrast:
        looks, wanted = contrast.looks, first_look(contrast)
        if more and bought > contrast.pairs:
            return dataclasses.replace(contrast, pairs=bought, looks=looks and (*looks, bought))
        if wanted <= fit:
            return contrast
        pairs = min(wanted, max(fewest[group_of(contrast)], fit))
        if looks:
            return dataclasses.replace(contrast, looks=(pairs, looks[-1]))
        return dataclasses.replace(contrast, pairs=pairs)

    return [within(c) for c in found]


def _next_looks(plan: Plan, ledger: Ledger, room_s: float) -> Step | None:
    """Return the next look of the undecided groups; None where there is none or no time.

    Groups that can still be decided go first.  A look that the budget does not hold becomes the
    last, after the pairs that it does hold: as many for every group, by what blocks took.  No ratio
    has a say in their number, only how much the ratios vary.
    """
    results = judged(Evidence(plan, ledger.last))
    due = dict(promising(plan, results, spans_due(plan, results)))
    start = len(plan.trials) + 1

    def planned(spans: Spans) -> list[Trial]:
        return blocks(plan.contrasts, plan.cases, seed=plan.seed, start=start, spans=spans)

    def cost_s(spans: Spans) -> float:
        return ledger.cost_s(planned(spans))

    while due:
        most = max(upto - done for done, upto in due.values())
        for more in range(most, min(most, FEWEST_MORE) - 1, -1):
            spans = {g: (done, min(upto, done + more)) for g, (done, upto) in due.items()}
            if cost_s(spans) <= room_s:
                found = [_ended(c, spans, due) for c in plan.contrasts]
                longer = dataclasses.replace(plan, contrasts=tuple(found))
                return _extended(longer, planned(spans))
        due.popitem()  # what is left is too little for all of them: the one that varies most
    return None


def _ended(contrast: Contrast, spans: Spans, due: Spans) -> Contrast:
    """Return a contrast whose next look is its last where it comes early; ``pairs`` stay."""
    group = group_of(contrast)
    if group not in spans or spans[group] == due[group]:
        return contrast
    done, upto = spans[group]
    looks = (*(n for n in contrast.looks if n <= done), upto)
    return dataclasses.replace(contrast, looks=looks)


def _probes(plan: Plan, ledger: Ledger, room_s: float) -> list[Trial]:
    """Return serial probes of both arms of each difference, while the budget lasts."""
    out: list[Trial] = []
    for found in probes_due(Evidence(plan, ledger.last)):
        trials = probe_blocks(
            found,
            plan.cases,
            seed=plan.seed,
            start=len(plan.trials) + len(out) + 1,
            samples=plan.dataset.samples,
            done=planned_blocks(plan, group_of(found[0]), paired=False),
        )
        cost = ledger.cost_s(trials)
        if cost <= room_s:
            room_s -= cost
            out += trials
    return out


def _calls(plan: Plan, ledger: Ledger, room_s: float) -> list[Trial]:
    """Return one traced trial an arm of each difference, while the budget lasts."""
    fitting, evidence = [], Evidence(plan, ledger.last)
    for trial in calls_due(evidence, differences(evidence)):
        room_s -= ledger.cost_s([trial])
        if room_s >= 0:
            fitting.append(trial)
    return number(fitting, start=len(plan.trials) + 1)


def probes_due(evidence: Evidence) -> list[list[Contrast]]:
    """Return, by group, the contrasts that found a difference and whose arm has no probes yet."""
    plan = evidence.plan
    loaders = {c.label: c.loader for c in plan.cases}
    probed = {(t.contrast, t.arm) for t in plan.trials if t.stage == stages.PROBE}
    able = [
        c
        for c in differences(evidence)
        if c.probes
        and (group_of(c), c.arm) not in probed  # another arm may have been, before
        and not any(can_probe(loaders[label]) for label in (c.arm, c.base))
    ]
    return list(groups(able).values())


def differences(evidence: Evidence) -> list[Contrast]:
    """Return the contrasts that ended FASTER or SLOWER, whatever their group still waits for."""
    found = judged(evidence)
    return [
        c for c in evidence.plan.contrasts
        if found[c.id].final and found[c.id].outcome.verdict in FOUND
    ]  # fmt: skip


def calls_due(evidence: Evidence, contrasts: Iterable[Contrast]) -> list[Trial]:
    """Return a traced trial of each case of these contrasts that has none planned yet.

    The cache state moves no count and is left as it is.
    """
    traced = {t.case.label for t in evidence.plan.trials if t.stage == "calls"}
    due = {label for c in contrasts for label in (c.arm, c.base)} - traced
    cases = (c for c in evidence.plan.cases if c.label in due and c.nodes == 1)
    return [Trial("", case, "calls", "-") for case in cases]  # strace is of this node
