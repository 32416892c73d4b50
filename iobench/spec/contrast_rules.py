"""The part of a spec that says what climbs the ladder and what is compared with what."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from iobench.core import registry, stages
from iobench.core.cases import STEADY, Case
from iobench.core.errors import SpecError, near, shown
from iobench.core.units import nbytes
from iobench.equations.signed_rank import FLOOR_PAIRS
from iobench.spec import schema

#: What a contrast can be over beside the keys of a case: the names of ``[[cases]]``, whatever
#: differs between them.
NAME = "name"


def check(where: str, contrast: schema.ContrastSpec, known: Collection[Any]) -> None:
    """Judge one ``[[contrasts]]`` entry; raises SpecError naming key, value and what is allowed.

    ``known``: the values that the matrix names of what it is over.
    """
    if contrast.over != NAME:
        check_keys(f"{where}.over", [contrast.over])
    check_caches(f"{where}.caches", contrast.caches)
    check_filter(f"{where}.where", contrast.where)
    _check_values(where, contrast, known)
    _check_numbers(where, contrast)


def check_ladder(ladder: schema.LadderSpec, extra: Sequence[schema.ExtraCase]) -> None:
    """Judge ``[ladder]`` and the stages of each ``[[cases]]`` entry; raises SpecError."""
    rungs = stages.rungs()
    own = {f"cases[{i}].stages": case.stages for i, case in enumerate(extra)}
    for where, wanted in {"ladder.stages": ladder.stages, **own}.items():
        for stage in wanted or ():
            if stage not in rungs:
                raise SpecError(f"{where}: unknown stage {stage!r}; allowed: {', '.join(rungs)}")
        if wanted is not None:
            not_empty(where, wanted)
    check_caches("ladder.caches", ladder.caches)
    check_filter("ladder.only", ladder.only)


def check_keys(where: str, wanted: Iterable[str]) -> None:
    """Judge whether every key is one of a case; raises SpecError."""
    known = schema.CaseSpec.model_fields
    unknown = next((key for key in wanted if key not in known), None)
    if unknown is not None:
        raise SpecError(f"{where}: unknown key {shown(unknown)}{near(unknown, sorted(known))}")


def check_caches(where: str, wanted: Sequence[str | float]) -> None:
    """Judge a list of cache states; raises SpecError."""
    not_empty(where, wanted)
    for cache in wanted:
        check_cache(where, cache)


def check_filter(where: str, wanted: schema.Filter) -> None:
    """Judge a filter of cases; raises SpecError."""
    check_keys(where, wanted)
    for key, values in wanted.items():
        not_empty(f"{where}.{key}", values, "give at least one value")
        for value in values if key == "runtime" else ():  # one that is not here is left out later
            registry.load("runtimes", str(value))


def check_passes(
    where: str, wanted: schema.Filter, cases: Sequence[Case], said: Mapping[str, Sequence[Any]]
) -> None:
    """Judge whether cases pass a filter; raises SpecError naming the values that there are.

    ``said``: key -> the values that the matrix names.  Any runtime may be named.
    """
    rest = {key: values for key, values in wanted.items() if key != "runtime"}
    for key, values in rest.items():
        for value in values:
            if value not in said[key] and not any(is_value(c, key, value) for c in cases):
                field = "memory_bytes" if key == "memory" else key
                there = said[key] or [getattr(case, field) for case in cases]
                raise SpecError(
                    f"{where}.{key}: no case has {value!r}; allowed: "
                    f"{', '.join(dict.fromkeys(map(str, there)))}"
                )
    if rest and not any(matches(case, rest) for case in cases):
        raise SpecError(
            f"{where}: {rest} leaves no case; allowed: values that some case has together"
        )


def matches(case: Case, wanted: schema.Filter) -> bool:
    """Return whether a case has one of the values wanted of each key."""
    return all(any(is_value(case, k, v) for v in values) for k, values in wanted.items())


def is_value(case: Case, key: str, value: Any) -> bool:
    """Return whether the case has this value of ``key`` (``pipeline`` goes by alias too)."""
    if key == "memory":
        return case.memory_bytes == nbytes(str(value))
    if key == "pipeline":
        return case.pipeline == registry.ALIASES.get(str(value), str(value))
    return bool(getattr(case, key) == value)


def check_cache(where: str, cache: str | float) -> str:
    """Return a cache state as text: cold, warm, steady, or a fraction strictly within 0 to 1."""
    if cache in ("cold", "warm", STEADY):
        return str(cache)
    if isinstance(cache, float) and 0 < cache < 1:
        return f"{cache:g}"
    raise SpecError(
        f"{where}: {cache!r} is unknown; allowed: cold, warm, steady or a fraction such as 0.35"
    )


def not_empty(
    where: str, values: Sequence[Any], way_out: str = "leave it out for the default"
) -> None:
    """Judge a list; raises SpecError for one without a value."""
    if not values:
        raise SpecError(f"{where}: the list is empty; {way_out}")


def _check_values(where: str, contrast: schema.ContrastSpec, known: Collection[Any]) -> None:
    # runtimes that are not here are left out of a suite, so any that is known may be named
    allowed = list(registry.names("runtimes")) if contrast.over == "runtime" else list(known)
    aliases = registry.ALIASES if contrast.over == "pipeline" else {}
    allowed = [aliases.get(str(name), name) for name in allowed]
    for key, values in (("arms", contrast.arms or ()), ("also", contrast.also)):
        for value in values:
            if aliases.get(str(value), value) not in allowed:
                raise SpecError(
                    f"{where}.{key}: {value!r} is no value of {contrast.over}; allowed: "
                    f"{', '.join(sorted(map(str, allowed))) or 'none, as the matrix names none'}"
                )
            if value == contrast.base:
                raise SpecError(f"{where}.{key}: {value!r} is the base already; name the others")
    if contrast.arms is not None:
        not_empty(f"{where}.arms", contrast.arms, "leave it out for all")
    if contrast.also and not contrast.shares_blocks:
        raise SpecError(
            f"{where}.also: {contrast.also[0]!r} needs blocks that all arms share; set shared = "
            "true"
        )


def _check_numbers(where: str, contrast: schema.ContrastSpec) -> None:
    looks = contrast.looks
    ascend = all(a < b for a, b in zip(looks, looks[1:], strict=False))
    if looks and (looks[0] < FLOOR_PAIRS or not ascend or looks[-1] > schema.MOST_PAIRS):
        raise SpecError(
            f"{where}.looks: {list(looks)} is not possible; allowed: ascending numbers of pairs, "
            f"{FLOOR_PAIRS} to {schema.MOST_PAIRS}, such as [10, 20, 30]"
        )
    if looks and "pairs" in contrast.model_fields_set and contrast.pairs != looks[-1]:
        raise SpecError(
            f"{where}.pairs: {contrast.pairs} against looks {list(looks)}; leave pairs out: the "
            "last look is the number of pairs"
        )
    if contrast.first and contrast.after:
        raise SpecError(f"{where}.after: {contrast.after} beside first; allowed: one of the two")
    if 0 < contrast.probe_pairs < schema.MIN_PROBES:
        raise SpecError(
            f"{where}.probes: {contrast.probes} is too few; allowed: 0, or {schema.MIN_PROBES} and "
            "more"
        )
