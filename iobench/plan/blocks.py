"""Contrasts -> paired blocks in drawn orders.  Pure.

Contrasts of one group share their blocks: a block holds every arm and the base once.  The order of
each block is drawn independently of all others.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping, Sequence

from iobench.core.cases import Case, Contrast, Plan, Trial
from iobench.core.stages import PROBE, PROBED_IN_TURNS
from iobench.plan.ladder import number

#: Group -> (blocks that are planned already, blocks wanted).
Spans = Mapping[str, tuple[int, int]]


def group_of(contrast: Contrast) -> str:
    """Return the group whose blocks a contrast is judged by; trials name it."""
    return contrast.group or contrast.id


def groups(contrasts: Iterable[Contrast]) -> dict[str, list[Contrast]]:
    """Return group -> its contrasts."""
    found: dict[str, list[Contrast]] = {}
    for contrast in contrasts:
        found.setdefault(group_of(contrast), []).append(contrast)
    return found


def members(contrasts: Iterable[Contrast]) -> tuple[str, ...]:
    """Return the labels of the cases that stand in the blocks of these contrasts, once each."""
    return tuple(dict.fromkeys(label for c in contrasts for label in (c.arm, c.base)))


def first_look(contrast: Contrast) -> int:
    """Return after how many pairs a contrast can be decided first."""
    return contrast.looks[0] if contrast.looks else contrast.pairs


def beside(plan: Plan, trial: Trial) -> tuple[Trial, ...]:
    """Return the trials of a contrast's trial's block, itself among them, in the plan's order."""
    place = trial.contrast, trial.stage, trial.block
    return tuple(t for t in plan.trials if (t.contrast, t.stage, t.block) == place)


def comparable(plan: Plan, trials: Sequence[Trial]) -> list[Trial]:
    """Return those of one block's trials that a contrast compares with another of them."""
    left = {trial.arm for trial in trials}
    together = groups(plan.contrasts).get(trials[0].contrast, []) if trials else []
    wanted = {label for c in together if {c.arm, c.base} <= left for label in (c.arm, c.base)}
    return [trial for trial in trials if trial.arm in wanted]


def blocks(
    contrasts: Sequence[Contrast],
    cases: Sequence[Case],
    *,
    seed: int,
    start: int,
    spans: Spans | None = None,
) -> list[Trial]:
    """Return the paired trials: all arms of a block together, in drawn orders, shuffled.

    ``start``: number of the first trial.  ``spans``: the groups wanted and which blocks of each;
    every group up to its first look when it is not given.
    """
    rng = random.Random(f"{seed}-blocks")
    by_label = {c.label: c for c in cases}
    drawn: list[list[Trial]] = []
    for group, together in groups(contrasts).items():
        draw = random.Random(f"{seed}-copies-{group}")
        drawn_orders = _orders(members(together), together[0].pairs, rng)
        before, upto = (0, first_look(together[0])) if spans is None else spans.get(group, (0, 0))
        drawn += [
            block_of(together[0], by_label, order, number_, draw)
            for number_, order in enumerate(drawn_orders, 1)
            if before < number_ <= upto
        ]
    (random.Random(f"{seed}-blocks-{start}") if spans is not None else rng).shuffle(drawn)
    return number([t for block in drawn for t in block], start=start)


def probe_blocks(
    together: Sequence[Contrast],
    cases: Sequence[Case],
    *,
    seed: int,
    start: int,
    samples: int,
    done: int = 0,
) -> list[Trial]:
    """Return the serial probes of contrasts of one group, interleaved in drawn orders.

    ``samples``: of the dataset, of which those that take turns see as many epochs as they need.
    ``done``: blocks of probes that the group has already.
    """
    rng = random.Random(f"{seed}-probes-{group_of(together[0])}")
    by_label = {c.label: c for c in cases}
    pairs, slice_s = max(c.probes for c in together), min(c.probe_slice_s for c in together)
    fewest = min(by_label[label].samples or samples for label in members(together))
    epochs = -(-PROBED_IN_TURNS // fewest) if slice_s else 1
    trials = [
        dataclasses.replace(trial, stage=PROBE, epochs=epochs, slice_s=slice_s, copy=0)
        for block, order in enumerate(_orders(members(together), pairs, rng), done + 1)
        for trial in block_of(together[0], by_label, order, block, rng)
    ]
    return number(trials, start=start)


def block_of(
    contrast: Contrast,
    by_label: Mapping[str, Case],
    order: Sequence[str],
    block: int,
    draw: random.Random,
    repeat_of: str = "",
) -> list[Trial]:
    """Return one block: a trial an arm, in ``order`` (case labels)."""
    copies = _copies(contrast, len(order), draw)
    return [
        Trial(
            id="",
            case=by_label[label],
            stage=contrast.stage,
            cache=contrast.cache,
            contrast=group_of(contrast),
            arm=label,
            block=block,
            position=position,
            repeat_of=repeat_of,
            epochs=contrast.epochs,
            slice_s=contrast.slice_s,
            copy=copy,
        )
        for position, (label, copy) in enumerate(zip(order, copies, strict=True))
    ]


def _copies(contrast: Contrast, arms: int, draw: random.Random) -> list[int]:
    """Return which copy of the stored form each arm reads, drawn; 0: the dataset itself.

    Of arms that take turns cold none may find in the page cache what another has read.
    """
    if not contrast.slice_s or contrast.cache == "warm":
        return [0] * arms
    return draw.sample(range(1, arms + 1), arms)


def _orders(labels: Sequence[str], count: int, rng: random.Random) -> list[list[str]]:
    """Return an order a block, each drawn independently."""
    return [rng.sample(labels, len(labels)) for _ in range(count)]
