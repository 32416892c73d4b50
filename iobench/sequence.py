"""What a suite runs next, from what has run: another look, what explains a difference.  Pure.

The plan grows look by look.  Whatever decides here is computed from the plan and the records, as
the report does it, so a suite that was killed at any point goes on as if it had not been.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iobench import calls, pairing, stats
from iobench.attribution import FOUND, can_probe
from iobench.contrasts import family_of, judge
from iobench.figures import Evidence
from iobench.model import Case, Contrast, Plan, Record, Trial


def spans_due(evidence: Evidence) -> dict[str, tuple[int, int]]:
    """Return group -> (blocks planned, blocks of its next look), of the groups that go on.

    A group ends when all of its primary contrasts are decided, or all of them where none is
    primary.
    """
    plan = evidence.plan
    due = {}
    for group, together in pairing.groups(plan.contrasts).items():
        done = planned_blocks(evidence, group)
        later = [n for n in together[0].looks if n > done]
        if later and not all(_final(evidence, c) for c in _deciding(together)):
            due[group] = (done, later[0])
    return due


def planned_blocks(evidence: Evidence, group: str) -> int:
    """Return how many blocks of a group are planned, repeats left out."""
    trials = evidence.plan.trials
    blocks = [t.block for t in trials if t.contrast == group and t.stage != "probe"
              and not t.repeat_of]  # fmt: skip
    return max(blocks, default=0)


def probes_due(evidence: Evidence) -> list[list[Contrast]]:
    """Return, by group, the contrasts that found a difference and whose arm has no probes yet."""
    plan = evidence.plan
    loaders = {c.label: c.loader for c in plan.cases}
    probed = {(t.contrast, t.arm) for t in plan.trials if t.stage == "probe"}
    able = [
        c
        for c in differences(evidence)
        if c.probes
        and (pairing.group_of(c), c.arm) not in probed  # another arm may have been, before
        and not any(can_probe(loaders[label]) for label in (c.arm, c.base))
    ]
    return list(pairing.groups(able).values())


def probed_blocks(plan: Plan, group: str) -> int:
    """Return how many blocks of serial probes of a group are planned."""
    probes = (t for t in plan.trials if (t.stage, t.contrast) == ("probe", group))
    return max((t.block for t in probes), default=0)


def calls_due(evidence: Evidence) -> list[Case]:
    """Return the arms of every difference that have no traced trial planned yet."""
    return calls.due(evidence, differences(evidence))


def differences(evidence: Evidence) -> list[Contrast]:
    """Return the contrasts that ended FASTER or SLOWER, whatever their group still waits for."""
    contrasts = evidence.plan.contrasts
    found = []
    for contrast in contrasts:
        entry = judge(evidence, contrast, family_of(contrasts, contrast))
        if entry["final"] and entry["verdict"] in FOUND:
            found.append(contrast)
    return found


def split_blocks(plan: Plan, done: Mapping[str, Record]) -> list[list[Trial]]:
    """Return the trials of each block that was not run whole and in one go, by its records.

    The arms of a block run back to back: hours later, or on another node, the missing ones would be
    compared with what the machine was before.
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
    """Tell whether the trials that have records ran in the plan's order.

    A resume that does not get to the end of a block leaves its later trials' older records.
    """
    begun = [done[t.id].started for t in trials if t.id in done]
    return begun == sorted(begun)


def _deciding(together: Sequence[Contrast]) -> list[Contrast]:
    primary = [c for c in together if c.primary]
    return primary or [c for c in together if c.pairs >= stats.FLOOR_PAIRS]


def _final(evidence: Evidence, contrast: Contrast) -> bool:
    return bool(judge(evidence, contrast, family_of(evidence.plan.contrasts, contrast))["final"])
