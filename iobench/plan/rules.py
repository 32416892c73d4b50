"""Cases -> contrasts -> paired blocks: who is compared with whom, in which order.  Pure.

Contrasts of one group share their blocks: a block holds every arm and the base once, back to back,
so the base runs once a block.  Orders come in twos, one drawn and its reverse (ABBA for two arms).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import get_args

from iobench import registry
from iobench.contrast_spec import ContrastSpec, check_cache, check_passes, is_value, matches
from iobench.errors import SpecError
from iobench.model import Case, Contrast, Trial
from iobench.plan import IN_MEMORY, ladder, number, rungs_missing
from iobench.spec import PIPELINE_FIELDS, Spec, expand, extra_cases, left_out, named, pipeline

#: Group -> (blocks that are planned already, blocks wanted).
Spans = Mapping[str, tuple[int, int]]
#: Fields of a case that follow from others.
FOLLOWING = ("label", "location")
Ranking = Mapping[tuple[str, str], Sequence[str]]


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


def contrasts(spec: Spec, cases: Sequence[Case], fastest: Ranking) -> list[Contrast]:
    """Return every contrast of the spec.

    ``fastest``: (stage, cache) -> case labels, fastest first, as the ladder found them.  Raises
    SpecError for one that compares nothing, or whose base is no case.
    """
    out: list[Contrast] = []
    for where, wanted, found in _wanted(spec, cases):
        for group, cache, here in _cells(wanted, found):
            ranked = fastest.get((wanted.stage, cache), ())
            if wanted.only != "fastest" or group is _with_fastest(found, ranked):
                base = _base(where, wanted, here, ranked)
                out += _of_group(wanted, here, base, cache, len(out))
    return out


def check(spec: Spec) -> None:
    """Judge the ladder and the contrasts of a spec as it is written, before anything is made.

    Nothing of it may have been left out yet for what is not here.  Raises SpecError for a filter
    that no case passes, a contrast that compares nothing or that a case has no rung for, and for
    ``fastest`` where the ladder ranks nothing.
    """
    cases = expand(spec)
    filters = [("ladder.only", spec.ladder.only)]
    filters += [(f"contrasts[{i}].where", c.where) for i, c in enumerate(spec.contrasts)]
    for where, wanted in filters:
        check_passes(where, wanted, cases, {key: named(spec, key) for key in wanted})
    ranked = {(t.case.label, t.stage, t.cache) for t in ladder(spec, cases, 0)}
    for where, contrast, found in _wanted(spec, cases):
        cells = list(_cells(contrast, found))
        for _, _, here in cells:
            _check_rungs(where, contrast, here)
        _check_fastest(where, contrast, cells, ranked)
    contrasts(spec, cases, {})


def _check_rungs(where: str, wanted: ContrastSpec, group: Sequence[Case]) -> None:
    """Judge whether every case that a contrast compares can run its stage alone."""
    base = [c for c in group if wanted.base != "fastest" and _is_base(wanted, c)]
    for case in (*base, *(c for c in group if _chosen(wanted, c))):
        missing = rungs_missing(case)
        if wanted.stage in missing:
            able = [s for s in get_args(ContrastSpec.model_fields["stage"].annotation)
                    if s not in missing]  # fmt: skip
            raise SpecError(
                f"{where}.stage: {case.pipeline} has no rung {wanted.stage!r}: "
                f"{missing[wanted.stage]}; allowed for it: {', '.join(able) or 'none'}; or leave "
                "it out by where or arms"
            )


def _check_fastest(
    where: str,
    wanted: ContrastSpec,
    cells: Sequence[tuple[Sequence[Case], str, Sequence[Case]]],
    ranked: Collection[tuple[str, str, str]],
) -> None:
    """Judge whether the ladder finds a fastest case where a contrast asks for it."""
    keys = [key for key in ("base", "only") if getattr(wanted, key) == "fastest"]
    for cache in dict.fromkeys(cache for _, cache, _ in cells) if keys else ():
        groups = [here for _, c, here in cells if c == cache]
        found = [any((c.label, wanted.stage, cache) in ranked for c in here) for here in groups]
        # `instead` and `only` are for one group: which one is known later
        enough = any(found) if wanted.instead or wanted.only else all(found)
        if not enough:
            rung = f"{wanted.stage} {cache}".removesuffix(" -")
            missing = groups[found.index(False)]
            raise SpecError(
                f"{where}.{keys[0]}: 'fastest' is the ladder's, and it does not run {rung} for "
                f"{', '.join(c.label for c in missing)}; allowed: a stage and caches that are in "
                "ladder.stages and ladder.caches, of cases that ladder.only lets climb, or a base "
                "by name"
            )


def _wanted(
    spec: Spec, cases: Sequence[Case]
) -> Iterator[tuple[str, ContrastSpec, list[list[Case]]]]:
    """Yield where each entry stands, the entry, and the groups of cases that it compares.

    Raises SpecError for one that compares nothing.
    """
    matrix = [c for c in cases if c.label not in extra_cases(spec, cases)] or list(cases)
    some_left_out = bool(left_out(spec))
    for i, wanted in enumerate(spec.contrasts):
        where = f"contrasts[{i}]"
        found = _groups([c for c in matrix if matches(c, wanted.where)], wanted.over)
        if not found and not _too_few_runtimes(spec, cases, wanted.over):
            raise SpecError(
                f"{where}: no two cases differ in {wanted.over!r} alone, so there is "
                f"nothing to compare; give matrix.{wanted.over} two values"
            )
        if some_left_out and any(_has_base(wanted, group) for group in found):
            found = [group for group in found if _has_base(wanted, group)]
        yield where, wanted, found


def _cells(
    wanted: ContrastSpec, found: Sequence[list[Case]]
) -> Iterator[tuple[list[Case], str, list[Case]]]:
    """Yield each group, each cache state, and which of the group's cases can be in it."""
    for group in found:
        fileless = all(registry.load("formats", c.format).fileless for c in group)
        caches = ["-"] if fileless else [check_cache("contrasts", c) for c in wanted.caches]
        for cache in caches:
            here = [c for c in group if cache in ("warm", "-") or c.placement != IN_MEMORY]
            if len(here) < 2 or (here != group and wanted.base == IN_MEMORY):
                continue  # what is left in memory cannot be compared cold
            yield group, cache, here


def blocks(
    contrasts: Sequence[Contrast],
    cases: Sequence[Case],
    *,
    seed: int,
    start: int,
    spans: Spans | None = None,
) -> list[Trial]:
    """Return the paired trials: all arms of a block back to back, in balanced orders, shuffled.

    ``start``: number of the first trial.  ``spans``: the groups wanted and which blocks of each;
    every group up to its first look when it is not given.
    """
    rng = random.Random(f"{seed}-blocks")
    by_label = {c.label: c for c in cases}
    drawn: list[list[Trial]] = []
    for group, together in groups(contrasts).items():
        drawn_orders = _orders(members(together), together[0].pairs, rng)
        before, upto = first_look(spans, group, together[0])
        drawn += [
            block_of(together[0], by_label, order, number_)
            for number_, order in enumerate(drawn_orders, 1)
            if before < number_ <= upto
        ]
    (random.Random(f"{seed}-blocks-{start}") if spans is not None else rng).shuffle(drawn)
    return number([t for block in drawn for t in block], start=start)


def first_look(spans: Spans | None, group: str, contrast: Contrast) -> tuple[int, int]:
    """Return the span of a group: as given, (0, first look) where none are given at all."""
    if spans is not None:
        return spans.get(group, (0, 0))
    return 0, (contrast.looks or (contrast.pairs,))[0]


def probe_blocks(
    together: Sequence[Contrast],
    cases: Sequence[Case],
    *,
    seed: int,
    start: int,
    done: int = 0,
) -> list[Trial]:
    """Return the serial probes of contrasts of one group, interleaved in balanced orders.

    ``done``: blocks of probes that the group has already.
    """
    rng = random.Random(f"{seed}-probes-{group_of(together[0])}")
    by_label = {c.label: c for c in cases}
    pairs = max(c.probes for c in together)
    trials: list[Trial] = []
    for block, order in enumerate(_orders(members(together), pairs, rng), done + 1):
        trials += [
            dataclasses.replace(t, stage="probe")
            for t in block_of(together[0], by_label, order, block)
        ]
    return number(trials, start=start)


def block_of(
    contrast: Contrast,
    by_label: Mapping[str, Case],
    order: Sequence[str],
    block: int,
    repeat_of: str = "",
) -> list[Trial]:
    """Return one block: a trial an arm, in ``order`` (case labels)."""
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
        )
        for position, label in enumerate(order)
    ]


def _orders(labels: Sequence[str], count: int, rng: random.Random) -> list[tuple[str, ...]]:
    """Return an order a block: each drawn one is followed by its reverse."""
    orders: list[tuple[str, ...]] = []
    while len(orders) < count:
        if len(labels) == 2:
            first = tuple(labels) if rng.random() < 0.5 else tuple(labels[::-1])
        else:
            first = tuple(rng.sample(list(labels), len(labels)))
        orders += [first, first[::-1]]
    return orders[:count]


def _of_group(
    wanted: ContrastSpec, group: Sequence[Case], base: Case, cache: str, done: int
) -> list[Contrast]:
    """Return the contrasts of one group of cases: arms against the base, then second bases."""
    others = [c for c in group if c.label != base.label and _chosen(wanted, c)]
    second = [c for c in others if _one_of(wanted.over, c, wanted.also)]
    arms = [c for c in others if c not in second]
    arms = arms[wanted.after :] if wanted.after else arms[: wanted.first]
    if not arms and not (second and wanted.after is None):
        return []
    pairs = [(c, base, wanted.primary and c not in second) for c in others if c in arms + second]
    pairs += [(arm, other, False) for other in second for arm in arms]
    shared = wanted.shares_blocks and len(arms) + len(second) > 1
    return [
        Contrast(
            id=f"c{done + j:02d}",
            arm=arm.label,
            base=against.label,
            stage=wanted.stage,
            cache=cache,
            margin=wanted.margin,
            pairs=wanted.most_pairs,
            primary=primary,
            group=f"g{done + 1:02d}" if shared else "",
            looks=wanted.looks if len(wanted.looks) > 1 else (),
            probes=wanted.probe_pairs,
        )
        for j, (arm, against, primary) in enumerate(pairs, 1)
    ]


def _chosen(wanted: ContrastSpec, case: Case) -> bool:
    wanted_arm = wanted.arms is None or _one_of(wanted.over, case, wanted.arms)
    return wanted_arm or _one_of(wanted.over, case, wanted.also)


def _one_of(over: str, case: Case, values: Iterable[object]) -> bool:
    return any(is_value(case, over, value) for value in values)


def _too_few_runtimes(spec: Spec, cases: Sequence[Case], over: str) -> bool:
    """Tell whether a spec names several runtimes of which this machine has too few."""
    return over == "runtime" and len(named(spec, over)) > len({c.runtime for c in cases})


def _with_fastest(found: Sequence[Sequence[Case]], ranked: Sequence[str]) -> Sequence[Case]:
    """Return the group with the case that the ladder found fastest; the first before it has run."""
    for label in ranked:
        for group in found:
            if any(c.label == label for c in group):
                return group
    return found[0]


def _groups(cases: Sequence[Case], over: str) -> list[list[Case]]:
    """Split the cases into those that differ in ``over`` alone (a location follows from these)."""
    ignored = (
        {*PIPELINE_FIELDS, "loader_options", "format_options"}
        if over == "pipeline"
        else {"memory_bytes" if over == "memory" else over}
    )
    names = [f.name for f in dataclasses.fields(Case) if f.name not in {*ignored, *FOLLOWING}]
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(repr([getattr(case, n) for n in names]), []).append(case)
    return [g for g in found.values() if len(g) > 1]


def _has_base(wanted: ContrastSpec, group: Sequence[Case]) -> bool:
    """Tell whether a group has its base; where that one was left out, nothing is compared."""
    return wanted.base == "fastest" or any(_is_base(wanted, case) for case in group)


def _is_base(wanted: ContrastSpec, case: Case) -> bool:
    if wanted.over == "pipeline":
        return (case.loader, case.format, case.content) == pipeline(str(wanted.base))
    return is_value(case, wanted.over, wanted.base)


def _base(where: str, wanted: ContrastSpec, group: Sequence[Case], fastest: Sequence[str]) -> Case:
    by_label = {c.label: c for c in group}
    if wanted.base == "fastest":
        ranked = [by_label[label] for label in fastest if label in by_label]
        return ranked[0] if ranked else group[0]
    for case in group:
        if _is_base(wanted, case):
            return case
    allowed = ", ".join(["fastest", *by_label])
    raise SpecError(f"{where}: base {wanted.base!r} is no case of this spec; allowed: {allowed}")
