"""A spec's contrasts -> rules over its cases: who is compared with whom.  Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence

from iobench.core import registry, stages
from iobench.core.cases import Case, Cell, ContrastRule
from iobench.core.errors import SpecError
from iobench.plan.ladder import ladder, rungs_missing
from iobench.spec.contrast_rules import NAME, check_cache, check_passes, is_value, matches
from iobench.spec.labels import PIPELINE_FIELDS
from iobench.spec.load import expand, extra_cases, left_out, named, pipeline
from iobench.spec.schema import MOST_PAIRED, MOST_TRIALS, ContrastSpec, Spec

#: Turns of cold data are at least this long, seconds: what a stopped arm has asked the device for
#: still comes in.  So are those of warm arms that differ in ``GOES_ON``.
LONG_SLICE_S = 0.3
#: Keys of a case on which depends what each turn costs it to go on (1 ms, with the caches of the
#: processor full of what others have read).
GOES_ON = ("loader", "format", "workers", "batch")
#: Keys of a case that leave alone how its loader reads: what is asked for ahead, and how much.
READ_ALIKE = frozenset(
    ("label", "name", "location", "runtime", "image", "runtime_options", "scope", "decoder",
     "transform", "trainer", "trainer_options")
)  # fmt: skip
#: Turns that a warm loop has at least, whatever the spec says of their length.
LEAST_ROUNDS = 20
#: Seconds that the loop of an arm that takes turns runs; in long turns longer.
LOOP_S = 3.0
#: Fields of a case that follow from others.
FOLLOWING = ("label", "name", "location")


def rules(spec: Spec, cases: Sequence[Case]) -> tuple[ContrastRule, ...]:
    """Return the spec's contrasts as data, over these cases.

    Raises SpecError for one that compares nothing, or whose base is no case.
    """
    return tuple(_rule(where, wanted, found) for where, wanted, found in _wanted(spec, cases))


def _rule(where: str, wanted: ContrastSpec, found: Sequence[list[Case]]) -> ContrastRule:
    every = [case for group in found for case in group]
    return ContrastRule(
        stage=wanted.stage,
        groups=tuple(_labels(group) for group in found),
        cells=tuple(
            Cell(
                cache,
                found.index(group),
                _labels(here),
                _base(where, wanted, here),
                slice_s=_slice_s(wanted, cache, here),
                probe_slice_s=_warm_slice_s(wanted, cache, here),
            )
            for group, cache, here in _cells(wanted, found)
        ),
        chosen=_labels(c for c in every if _chosen(wanted, c)),
        also=_labels(c for c in every if _one_of(wanted.over, c, wanted.also)),
        first=wanted.first or 0,
        after=wanted.after or 0,
        fastest_only=wanted.only == "fastest",
        shared=wanted.shares_blocks,
        margin=wanted.margin,
        pairs=wanted.most_pairs,
        looks=wanted.looks if len(wanted.looks) > 1 else (),
        primary=wanted.primary,
        probes=wanted.probe_pairs,
        loop_s=_loop_s(wanted, all(_alike(here, GOES_ON) for _, _, here in _cells(wanted, found))),
    )


def _slice_s(wanted: ContrastSpec, cache: str, here: Sequence[Case]) -> float:
    """Return how long a turn of these arms lasts; 0 where stopping one would change its speed.

    A GPU goes on with what it was asked for, and a trainer waits for a time of day.  So does a
    device: what a stopped arm has asked it for comes in during the next one's turn, so cold arms
    have to ask alike.  Each needs a copy, which can be made where data lie in the dataset.
    """
    if stages.of(wanted.stage).trained or any(c.uses_gpu for c in here):
        return 0.0
    if cache != "cold":
        slice_s = _warm_slice_s(wanted, cache, here)
        if not slice_s or _alike(here, GOES_ON):
            return slice_s
        return max(slice_s, min(LONG_SLICE_S, _loop_s(wanted, False) / LEAST_ROUNDS))
    bound = all(c.placement == "bind" for c in here)
    able = wanted.slice_s and bound and _may_stop(here) and _read_alike(here)
    return max(wanted.slice_s, LONG_SLICE_S) if able else 0.0


def _warm_slice_s(wanted: ContrastSpec, cache: str, here: Sequence[Case]) -> float:
    """Return how long a turn on warm data lasts, of these arms or of their serial probes, in which
    none trains; 0: none.

    Cold probes do not take turns: each arm would need a copy of the data.
    """
    able = cache == "warm" and _may_stop(here)
    return min(wanted.slice_s, _loop_s(wanted, True) / LEAST_ROUNDS) if able else 0.0


def _loop_s(wanted: ContrastSpec, alike: bool) -> float:
    return wanted.loop_s or (LOOP_S if alike else LEAST_ROUNDS * LONG_SLICE_S)


def _read_alike(here: Sequence[Case]) -> bool:
    return _alike(here, {f.name for f in dataclasses.fields(Case)} - READ_ALIKE)


def _alike(here: Sequence[Case], keys: Iterable[str]) -> bool:
    return all(getattr(c, key) == getattr(here[0], key) for key in keys for c in here)


def _may_stop(here: Sequence[Case]) -> bool:
    """Return whether these cases can be stopped for a while.

    A quota gives at once what was not used, and ranks wait for each other.
    """
    return all(
        c.world_size == 1 and not c.cpus and not c.memory_bytes
        and not registry.load("formats", c.format).fileless
        for c in here
    )  # fmt: skip


def _labels(cases: Iterable[Case]) -> tuple[str, ...]:
    return tuple(case.label for case in cases)


def check(spec: Spec) -> None:
    """Judge the ladder and the contrasts of a spec as it is written, before anything is made.

    Raises SpecError for a filter that no case passes, a contrast that compares nothing or that a
    case has no rung for, and for ``fastest`` where the ladder ranks nothing.
    """
    cases = expand(spec)
    _check_size(spec, cases)
    filters = [("ladder.only", spec.ladder.only)]
    filters += [(f"contrasts[{i}].where", c.where) for i, c in enumerate(spec.contrasts)]
    for where, wanted in filters:
        check_passes(where, wanted, cases, {key: named(spec, key) for key in wanted})
    ranked = {(t.case.label, t.stage, t.cache) for t in ladder(spec, cases)}
    for where, contrast, found in _wanted(spec, cases):
        cells = list(_cells(contrast, found))
        for _, _, here in cells:
            _check_rungs(where, contrast, here)
        _check_fastest(where, contrast, cells, ranked)
    compared = sum(
        rule.pairs * sum(len(cell.cases) for cell in rule.cells) for rule in rules(spec, cases)
    )
    if compared > MOST_PAIRED:
        raise SpecError(
            f"contrasts: their pairs make {compared} trials; allowed: at most {MOST_PAIRED}; use "
            "fewer pairs, arms or caches"
        )


def _check_size(spec: Spec, cases: Sequence[Case]) -> None:
    """Judge how many trials the ladder has, before they are made."""
    extras, rungs = extra_cases(spec, cases), spec.ladder
    trials = 0
    for case in cases:
        extra = extras.get(case.label)
        climbing = len((extra and extra.stages) or rungs.stages) * len(rungs.caches)
        trials += ((extra and extra.repeats) or rungs.repeats) * climbing
    if trials > MOST_TRIALS:
        raise SpecError(
            f"ladder.repeats = {rungs.repeats}: {trials} trials of {len(cases)} cases; allowed: "
            f"at most {MOST_TRIALS}; use fewer repeats, stages or cases"
        )


def _check_rungs(where: str, wanted: ContrastSpec, group: Sequence[Case]) -> None:
    """Judge whether every case that a contrast compares can run its stage alone."""
    base = [c for c in group if wanted.base != "fastest" and _is_base(wanted, c)]
    for case in (*base, *(c for c in group if _chosen(wanted, c))):
        missing = rungs_missing(case)
        if wanted.stage in missing:
            able = [s for s in stages.contrasted() if s not in missing]
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
    some_left_out, runtimes = bool(left_out(spec) or spec.exclude), len({c.runtime for c in cases})
    for i, wanted in enumerate(spec.contrasts):
        where = f"contrasts[{i}]"
        among = [c for c in cases if c.name] if wanted.over == NAME else matrix
        found = _groups([c for c in among if matches(c, wanted.where)], wanted.over)
        many = wanted.over == "runtime" and len(named(spec, "runtime")) > runtimes
        if not found and not many:  # many runtimes of which too few are here: not the spec's fault
            raise SpecError(
                f"{where}: no two cases differ in {wanted.over!r} alone, so there is "
                f"nothing to compare; give {_place(wanted.over)} two values"
            )
        if some_left_out and any(_has_base(wanted, group) for group in found):
            found = [group for group in found if _has_base(wanted, group)]
        yield where, wanted, found


def _place(over: str) -> str:
    return "[[cases]].name" if over == NAME else f"matrix.{over}"


def _cells(
    wanted: ContrastSpec, found: Sequence[list[Case]]
) -> Iterator[tuple[list[Case], str, list[Case]]]:
    """Yield each group, each cache state, and which of the group's cases can be in it."""
    for group in found:
        fileless = all(registry.load("formats", c.format).fileless for c in group)
        caches = ["-"] if fileless else [check_cache("contrasts", c) for c in wanted.caches]
        for cache in caches:
            places = {c.placement for c in group}
            memory = {p for p in places if registry.load("placements", p).in_memory}
            here = [c for c in group if cache in ("warm", "-") or c.placement not in memory]
            if len(here) < 2 or (here != group and wanted.base in memory):
                continue  # what is in memory cannot be compared cold
            yield group, cache, here


def _chosen(wanted: ContrastSpec, case: Case) -> bool:
    return wanted.arms is None or _one_of(wanted.over, case, (*wanted.arms, *wanted.also))


def _one_of(over: str, case: Case, values: Iterable[object]) -> bool:
    return any(is_value(case, over, value) for value in values)


def _groups(cases: Sequence[Case], over: str) -> list[list[Case]]:
    """Split the cases into those that differ in ``over`` alone (a location follows from these)."""
    if over == NAME:
        return [list(cases)] if len(cases) > 1 else []
    ignored = {"memory_bytes" if over == "memory" else over}
    if over == "pipeline":
        ignored = {*PIPELINE_FIELDS, "loader_options", "format_options"}
    names = [f.name for f in dataclasses.fields(Case)]
    if over in ("nodes", "ranks_per_node"):  # as many ranks on each, or on as many nodes
        ignored |= {"world_size"}
        names.append("ranks_per_node")
    names = [name for name in names if name not in {*ignored, *FOLLOWING}]
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


def _base(where: str, wanted: ContrastSpec, group: Sequence[Case]) -> str:
    """Return the label of the base, "" for the fastest; raises SpecError where it is no case."""
    if wanted.base == "fastest":
        return ""
    for case in group:
        if _is_base(wanted, case):
            return case.label
    allowed = ", ".join(["fastest", *_labels(group)])
    raise SpecError(f"{where}: base {wanted.base!r} is no case of this spec; allowed: {allowed}")
