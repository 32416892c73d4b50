"""One contrast's paired blocks -> ratio, interval, verdict, and what else differs between arms."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

from iobench.analysis.allocations import allocations
from iobench.analysis.confounders import confounders
from iobench.analysis.contrast_results import ContrastResult, LookResult, Outcome
from iobench.analysis.evidence import Evidence
from iobench.analysis.pairs import Pair, complete_pairs, equal_order, factors, is_of, proven
from iobench.analysis.sample_cost import per_sample
from iobench.core.cases import Contrast, Trial, alike
from iobench.core.records import EXPLORATORY, Record
from iobench.equations import sequential, stats
from iobench.plan.contrasts import family_of
from iobench.spec.labels import PIPELINE_FIELDS


@dataclasses.dataclass(frozen=True)
class _Watched:
    """A contrast's pairs, and the looks at which all of their blocks had been tried.

    ``trials``: all that are planned.  ``kept``: without those that a repeat replaces.
    ``reached``: numbers of blocks.
    """

    contrast: Contrast
    trials: Sequence[Trial]
    pairs: Sequence[Pair]
    replaced: Set[int]
    planned: Set[int]
    reached: Sequence[int]

    @property
    def kept(self) -> list[Pair]:
        return [p for p in self.pairs if p.block not in self.replaced]


def judged(evidence: Evidence) -> dict[str, ContrastResult]:
    """Judge every contrast of the plan; return contrast id -> result.

    A repeated block replaces the one that it repeats; ``without_repeats`` is the outcome of the
    first blocks alone.  With several looks the first that decides gives the verdict, and later
    pairs are not used: docs/method.md, "Verdicts".  The results depend on the records alone, so
    the scheduler and the report agree.
    """
    every, script = evidence.plan.contrasts, evidence.plan.dataset.of_script
    place = {trial: n for n, trial in enumerate(evidence.last)}
    families: dict[bool, list[_Watched]] = {}
    for contrast in every:
        families.setdefault(contrast.primary, []).append(_watched(evidence, contrast))
    found = {}
    for members in families.values():
        family = family_of(every, members[0].contrast)
        looks = [_looks(watched, place, script=script) for watched in members]
        for watched, decision in zip(members, sequential.decide(family, looks), strict=True):
            result = _result(evidence, watched, family, decision, script=script)
            found[watched.contrast.id] = result
    return {contrast.id: found[contrast.id] for contrast in every}


def _watched(evidence: Evidence, contrast: Contrast) -> _Watched:
    pairs = complete_pairs(evidence, contrast)
    mine = [t for t in evidence.plan.trials if is_of(t, contrast)]
    planned = {t.block for t in mine if not t.repeat_of}
    reached = _reached(evidence, contrast, mine, max(planned, default=0))
    replaced = {p.repeat_of for p in pairs if p.repeat_of}
    return _Watched(contrast, mine, pairs, replaced, planned, reached)


def _looks(watched: _Watched, place: Mapping[str, int], *, script: bool) -> sequential.Looks:
    """Return what each look saw; ``place``: trial id -> its place in the order of time."""
    contrast = watched.contrast
    arms = {contrast.arm, contrast.base}
    mine = [
        (int(t.repeat_of or t.block), place[t.id])
        for t in watched.trials
        if t.arm in arms and t.id in place
    ]
    looks = []
    for upto in watched.reached:
        used = _upto(watched.kept, upto)
        when = max((at for block, at in mine if block <= upto), default=0)
        looks.append(sequential.Look(when, *_sides(used), not _withheld(used, script=script)[1]))
    return sequential.Looks(_planned(contrast), looks, contrast.margin, contrast.pairs)


def _planned(contrast: Contrast) -> tuple[int, ...]:
    return contrast.looks or (contrast.pairs,)


def _result(
    evidence: Evidence, watched: _Watched, family: int, decision: sequential.LookVerdict | None,
    *, script: bool,
) -> ContrastResult:  # fmt: skip
    contrast, looks, alpha = watched.contrast, _planned(watched.contrast), stats.ALPHA / family
    level = decision.level if decision else sequential.levels(looks, alpha, contrast.pairs)[0]
    taken = looks.index(level.pairs) + 1 if decision else 0
    upto = watched.reached[taken - 1] if decision else looks[0]
    used = _upto(watched.kept, upto)
    result = alike(
        ContrastResult,
        contrast,
        **_names(evidence, contrast),
        family=family,
        pairs_run=len(watched.kept),
        look=LookResult(
            planned=looks,
            taken=taken,
            alpha=alpha,
            spent=sequential.spending(looks, alpha, contrast.pairs)[taken - 1] if taken else 0.0,
            level=level.differ,
            level_equal=level.equal,
        ),
        pairs=len(used),
        pairs_planned=sum(block <= upto for block in watched.planned),
        repeated_blocks=sorted(b for b in watched.replaced if b <= upto),
        final=decision is not None and decision.final,
    )
    if not used:
        return result
    first = [p for p in watched.pairs if not p.repeat_of and p.block <= upto]
    if result.repeated_blocks and first:
        first = proven(first)
        without = _outcome(_verdict(first, contrast, family, level), first)
        result = dataclasses.replace(result, without_repeats=without)
    found = decision.verdict if decision else _verdict(used, contrast, family, level)
    return _compared(
        result, used, contrast, _outcome(found, used), decided=decision is not None, script=script
    )


def _withheld(used: Sequence[Pair], *, script: bool) -> tuple[bool | None, str]:
    """Return (whether both arms saw one order of samples, why the pairs give no verdict or "").

    ``script``: of a user's own, whose order of samples nobody knows.
    """
    equal, unequal = (None, "") if script else equal_order(used)
    if equal is False:
        return False, unequal
    unproven = [r for p in used for r in (p.arm, p.base) if r.status == EXPLORATORY]
    reasons = "; ".join(unproven[0].reasons) or "no reason given" if unproven else ""
    return equal, reasons and f"trials are EXPLORATORY: {reasons}"


def _compared(
    result: ContrastResult,
    used: Sequence[Pair],
    contrast: Contrast,
    outcome: Outcome,
    *,
    decided: bool,
    script: bool,
) -> ContrastResult:
    """Return ``result`` with what its pairs say; the verdict is withheld where they cannot.

    ``script``: of a user's own, whose order of samples nobody knows.
    """
    first, final = result.look.planned[0], result.final
    equal, withheld = _withheld(used, script=script)
    note = withheld
    if equal is False:
        outcome = dataclasses.replace(outcome, pairs_needed=None)
    elif not (withheld or decided):
        note = (
            f"{len(used)} pairs so far, the first look comes at {first}"
            if contrast.looks
            else f"{len(used)} of {first} pairs so far, judged when all and their repeats have run"
        )
    if note:
        outcome = dataclasses.replace(outcome, verdict=stats.NO_VERDICT, note=note)
        final = final or bool(withheld)
    last = used[-1]
    return dataclasses.replace(
        result,
        outcome=outcome,
        final=final,
        allocations=allocations(used),
        startup_s=_startup(used),
        work={side: per_sample([getattr(p, side) for p in used]) for side in ("arm", "base")},
        confounders=confounders(used, result.look.level),
        runtimes={"arm": dict(last.arm.runtime), "base": dict(last.base.runtime)},
        equal_order=equal,
    )


def _names(evidence: Evidence, contrast: Contrast) -> dict[str, Any]:
    """Return the keys that a contrast is over, what both cases share, and each arm's name."""
    names: dict[str, Any] = {"case": "", "arm_name": contrast.arm, "base_name": contrast.base}
    cases = {c.label: c for c in evidence.plan.cases}
    arm, base = cases.get(contrast.arm), cases.get(contrast.base)
    over = factors(arm, base) if arm and base else []
    named = bool(arm and base and arm.name and base.name)
    if len(over) == 1 and over[0] not in PIPELINE_FIELDS and not named:
        common = [w for w in contrast.arm.split(" ") if not w.startswith(f"{over[0]}=")]
        arms = {"arm_name": str(getattr(arm, over[0])), "base_name": str(getattr(base, over[0]))}
        names = {"case": " ".join(common), **arms}
    return {"over": over, **names}


def _startup(pairs: Sequence[Pair]) -> stats.Interval | None:
    """Return the paired difference of the start-up, arm - base, in seconds; None if not recorded.

    A walk through the whole dataset counts where the loader was asked for one.
    """
    known = [
        _started_s(p.arm) - _started_s(p.base) for p in pairs if p.arm.ready_s and p.base.ready_s
    ]
    return stats.hodges_lehmann(known) if known else None


def _started_s(record: Record) -> float:
    return record.ready_s + max((rank.startup.walk_s for rank in record.ranks), default=0.0)


def _upto(pairs: Sequence[Pair], blocks: int) -> list[Pair]:
    """Return what a look at so many blocks uses; later ones change nothing about it."""
    return proven([p for p in pairs if (p.repeat_of or p.block) <= blocks])


def _reached(evidence: Evidence, contrast: Contrast, mine: Sequence[Trial], last: int) -> list[int]:
    """Return the looks whose blocks have all been tried, repeats included.

    A trial that failed was tried.  One look is at the last planned block, whatever the budget left.
    """
    arms = {contrast.arm, contrast.base}
    waiting = (t for t in mine if t.arm in arms and t.id not in evidence.last)
    first_open = min((int(t.repeat_of or t.block) for t in waiting), default=math.inf)
    return [n for n in contrast.looks or (last,) if n <= last and n < first_open]


def _verdict(
    pairs: Sequence[Pair], contrast: Contrast, family: int, level: sequential.Level
) -> stats.Verdict:
    arm, base = _sides(pairs)
    return stats.verdict(
        arm, base, margin=contrast.margin, family=family, differ=level.differ, equal=level.equal
    )


def _sides(pairs: Sequence[Pair]) -> tuple[list[float], list[float]]:
    values = [p.seconds_per_sample for p in pairs]
    return [a for a, _ in values], [b for _, b in values]


def _outcome(found: stats.Verdict, pairs: Sequence[Pair]) -> Outcome:
    arm, base = _sides(pairs)
    ratios = [a / b for a, b in zip(arm, base, strict=True)]
    outlying = stats.outliers([math.log(r) for r in ratios])
    effect = found.smallest_effect
    return alike(
        Outcome,
        found,
        smallest_effect=effect if math.isfinite(effect) else None,
        outlier_blocks=[pairs[i].block for i in outlying],
        ratios=ratios,
    )
