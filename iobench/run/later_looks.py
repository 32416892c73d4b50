"""Which groups of contrasts go on to their next look, and which of them first.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from iobench.analysis.contrast_results import ContrastResult
from iobench.core import stages
from iobench.core.cases import Contrast, Plan, Trial
from iobench.equations import signed_rank
from iobench.equations.stats import ALPHA
from iobench.plan.blocks import Spans, groups

#: A contrast that would take so many times the pairs of its last look waits for all others.
HOPELESS = 2
#: Contrast id -> what its pairs say so far.
Results = Mapping[str, ContrastResult]


def spans_due(plan: Plan, results: Results) -> Spans:
    """Return group -> (blocks planned, blocks of its next look), of the groups that go on.

    A group ends when all of its primary contrasts are decided, or all of them where none is
    primary.  One whose arm or base has failed in every block waits for nothing.
    """
    due = {}
    for group, together in groups(plan.contrasts).items():
        done = planned_blocks(plan, group)
        later = [n for n in together[0].looks if n > done]
        primary = [c for c in together if c.primary]
        deciding = primary or [c for c in together if c.pairs >= signed_rank.FLOOR_PAIRS]
        found = [results[c.id] for c in deciding]
        if later and any(c.pairs_run and not c.final for c in found):
            due[group] = (done, later[0])
    return due


def promising(plan: Plan, results: Results, due: Spans) -> Spans:
    """Return the groups of which a contrast can still be decided, all where none can; first those
    that vary least.

    One cannot whose ratios vary so much that twice the pairs of its last look would be too few.
    """
    together = groups(plan.contrasts)

    def share(contrast: Contrast) -> float:
        """Return how many times the pairs of its last look it takes to decide a contrast."""
        found = results[contrast.id]
        sd = found.outcome.log_sd
        if found.final or sd is None:
            return inf if found.final else 0.0
        needed = signed_rank.pairs_for(contrast.margin, sd, alpha=ALPHA / found.family)
        return needed / contrast.looks[-1]

    shares = {group: min(map(share, together[group])) for group in due}
    able = sorted((g for g in due if shares[g] <= HOPELESS), key=shares.__getitem__)
    return {group: due[group] for group in able} or due


def planned_blocks(plan: Plan, group: str, *, paired: bool = True) -> int:
    """Return how many blocks of pairs (or of probes) are planned for a group, without repeats."""
    mine = (t for t in plan.trials if t.contrast == group and not t.repeat_of)
    return max((t.block for t in mine if in_pair(t) == paired), default=0)


def in_pair(trial: Trial) -> bool:
    """Tell whether a contrast's trial is one of its pairs (not a probe of its arms)."""
    return stages.of(trial.stage).contrasted
