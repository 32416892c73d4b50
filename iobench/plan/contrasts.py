"""Contrast rules and the ladder's ranking -> contrasts.  Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from iobench.core.cases import Cell, Contrast, ContrastRule, Plan, Trial, alike
from iobench.core.stages import PROBE
from iobench.equations import sequential
from iobench.equations.signed_rank import FLOOR_PAIRS, fewest_pairs
from iobench.equations.stats import ALPHA
from iobench.plan.blocks import group_of

#: (stage, cache) -> case labels, fastest first, as the ladder found them.
Ranking = Mapping[tuple[str, str], Sequence[str]]
T = TypeVar("T", Trial, Contrast, Cell)


def contrasts(rules: Sequence[ContrastRule], fastest: Ranking) -> list[Contrast]:
    """Return every contrast of a plan; before the ladder has run, the first case is the fastest.

    Entries of a spec that share blocks also share them with each other where base, stage, cache,
    loops and numbers of pairs are the same; a comparison that an earlier one makes of those blocks
    is not made again.
    """
    out: list[Contrast] = []
    sharing: dict[tuple[object, ...], str] = {}
    for rule in rules:
        for cell in rule.cells:
            ranked = fastest.get((rule.stage, cell.cache), ())
            if not rule.fastest_only or cell.group == _with_fastest(rule, ranked):
                fastest_here = next((c for c in ranked if c in cell.cases), cell.cases[0])
                base = cell.base or fastest_here
                loops = cell.slice_s, rule.loop_s, rule.pairs, rule.looks
                key = base, rule.stage, cell.cache, *loops
                group = sharing.get(key, "") if rule.shared else ""
                made = _of_cell(rule, cell, base, out, group)
                if made and rule.shared:
                    sharing[key] = group_of(made[0])
                out += made
    return out


def family_of(contrasts: Sequence[Contrast], contrast: Contrast) -> int:
    """Return how many contrasts are judged together with this one.

    Primary ones are one family, the others another; one of too few pairs for any verdict cannot
    be wrong, and costs the others nothing.
    """
    enough = (c for c in contrasts if c.pairs >= FLOOR_PAIRS)
    return max(1, sum(c.primary == contrast.primary for c in enough))


def fewest_of(contrasts: Sequence[Contrast], together: Sequence[Contrast]) -> int:
    """Return the fewest pairs with which contrasts that share blocks have simultaneous limits, each
    in its family; of several looks, the fewest of the first.
    """
    return max(_fewest(ALPHA / family_of(contrasts, c), c.looks[1:]) for c in together)


def _fewest(alpha: float, later: Sequence[int]) -> int:
    """Return the fewest pairs with limits, of a first look where some of alpha is for others."""
    pairs = fewest_pairs(alpha)
    while later and pairs < later[-1] and pairs < fewest_pairs(_first_level(pairs, alpha, later)):
        pairs += 1
    return pairs


def _first_level(pairs: int, alpha: float, later: Sequence[int]) -> float:
    """Return the level of a difference at a first look of so many pairs and one more, the last."""
    return sequential.levels((pairs, later[-1]), alpha)[0].differ


def without_limits(contrasts: Sequence[Contrast]) -> list[str]:
    """Return a line for each number of pairs too small for simultaneous limits of its family.

    Fewer than ``FLOOR_PAIRS`` are left out: they give no verdict by definition (EXPLORATORY).
    """
    found = {}
    for contrast in contrasts:
        together, fewest = family_of(contrasts, contrast), fewest_of(contrasts, [contrast])
        if FLOOR_PAIRS <= contrast.pairs < fewest:
            found[contrast.pairs, together] = (
                f"pairs = {contrast.pairs}: too few for {together} comparisons that are judged "
                f"together, all INCONCLUSIVE; pairs = {fewest} or more have limits"
            )
    return list(found.values())


def without_turns(plan: Plan, reason: str, cache: str = "") -> Plan:
    """Return the plan with arms that run one after the other, for this reason; also those to come.

    ``cache``: of this cache state alone.  Loops stay as long as planned; serial probes go on taking
    turns.  The plan itself where no arms take turns.
    """

    def ended(planned: T) -> T:
        """Return a trial, contrast or cell without turns."""
        concerned = not cache or planned.cache == cache
        return dataclasses.replace(planned, slice_s=0.0) if concerned else planned

    if not any(cell.slice_s for rule in plan.rules for cell in rule.cells):
        return plan
    trials = (t if t.stage == PROBE else ended(t) for t in plan.trials)
    return dataclasses.replace(
        _changed(plan, ended, f"{cache}{' ' if cache else ''}arms", reason),
        trials=tuple(dataclasses.replace(t, copy=t.copy if t.slice_s else 0) for t in trials),
    )


def without_probe_turns(plan: Plan, reason: str) -> Plan:
    """Return the plan with serial probes that run one after the other, for this reason.

    The plan itself where none take turns.
    """

    def ended(planned: Contrast | Cell) -> Any:
        return dataclasses.replace(planned, probe_slice_s=0.0)

    if not any(cell.probe_slice_s for rule in plan.rules if rule.probes for cell in rule.cells):
        return plan
    return dataclasses.replace(
        _changed(plan, ended, "serial probes", reason),
        trials=tuple(
            dataclasses.replace(t, slice_s=0.0) if t.stage == PROBE else t for t in plan.trials
        ),
    )


def _changed(plan: Plan, ended: Callable[[Any], Any], who: str, reason: str) -> Plan:
    return dataclasses.replace(
        plan,
        contrasts=tuple(map(ended, plan.contrasts)),
        rules=tuple(
            dataclasses.replace(rule, cells=tuple(map(ended, rule.cells))) for rule in plan.rules
        ),
        notes=(*plan.notes, f"{who} run one after the other, not in turns: {reason}"),
    )


def _with_fastest(rule: ContrastRule, ranked: Sequence[str]) -> int:
    """Return the group of cases with the fastest one; the first group before the ladder has run."""
    groups = enumerate(rule.groups)
    place = {label: i for i, group in groups for label in group}
    return next((place[label] for label in ranked if label in place), 0)


def _of_cell(
    rule: ContrastRule, cell: Cell, base: str, before: Sequence[Contrast], group: str
) -> list[Contrast]:
    """Return the contrasts of one cell: arms against the base, then against the second bases.

    ``before``: those that there are; of ``group``, whose blocks it shares, none is made again.
    """
    others = [label for label in cell.cases if label != base and label in rule.chosen]
    second = [label for label in others if label in rule.also]
    arms = [label for label in others if label not in second]
    arms = arms[rule.after :] if rule.after else arms[: rule.first or None]
    if not arms and not (second and not rule.after):
        return []
    wanted = [label for label in others if label in arms + second]
    pairs = [(label, base, rule.primary and label not in second) for label in wanted]
    pairs += [(arm, other, False) for other in second for arm in arms]
    had = {
        (c.arm, c.base, primary)
        for c in before
        if group and group_of(c) == group and c.margin == rule.margin
        for primary in {c.primary, False}  # a primary one also serves where none is wanted
    }
    pairs = [pair for pair in pairs if pair not in had]
    done = len(before)
    shared = rule.shared and len(arms) + len(second) > 1
    return [
        alike(
            Contrast,
            rule,
            id=f"c{done + j:02d}",
            arm=arm,
            base=against,
            cache=cell.cache,
            slice_s=cell.slice_s,
            probe_slice_s=cell.probe_slice_s,
            primary=primary,
            group=group or (f"g{done + 1:02d}" if shared else ""),
        )
        for j, (arm, against, primary) in enumerate(pairs, 1)
    ]
