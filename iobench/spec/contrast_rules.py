"""The part of a spec that says what climbs the ladder and what is compared with what."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import pydantic

from iobench import registry
from iobench.errors import SpecError
from iobench.model import STAGES, Case
from iobench.stats import FLOOR_PAIRS
from iobench.units import nbytes

#: Pairs of serial probes that a contrast over runtimes gets when it has found a difference: the
#: fewest in which one disturbed pair, however far out, cannot hide a stage's difference (2 * 110 of
#: 2^14 signed-rank sums lie as low as that pair's rank, below 5 % / 3 stages).
PROBES = 14
#: Three stages are told apart at 95 % together: seven pairs are the fewest whose interval exists.
MIN_PROBES = 7
#: More than a week of the shortest trials; every pair of a plan is held in memory.
MOST_PAIRS = 100_000
#: A filter of cases: key -> the values that may take part.
Filter = dict[str, list[Any]]


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class LadderSpec(_Strict):
    """The rungs every case of the matrix climbs; ``only`` names those that do (else all).

    The others are compared in contrasts alone; their samples are digested all the same.
    """

    stages: tuple[str, ...] = STAGES
    caches: tuple[str | float, ...] = ("cold", "warm")
    repeats: int = pydantic.Field(default=3, ge=1)
    probe: bool = True
    digest: bool = True
    only: Filter = {}


class ContrastSpec(_Strict):
    """Paired blocks over one key: every other value of ``over`` against ``base``.

    ``where``: only cases with these values.  ``only = "fastest"``: only the pipeline that the
    ladder found fastest.  ``arms``: only these values; ``first = N``: the first N arms after the
    base, ``after = N``: those beyond them.  ``also``: second bases in the same blocks, never
    primary; they count neither for ``first`` nor for ``after``.  ``looks``: pairs after which it
    may end.  ``probes``: pairs of serial probes after a difference (default: over runtimes, 14).
    ``instead``: only where no two runtimes are left to compare.
    """

    over: str = "pipeline"
    base: str | int | float = "fastest"
    stage: Literal["read", "decode", "load", "train"] = "load"
    caches: tuple[str | float, ...] = ("warm", "cold")
    pairs: int = pydantic.Field(default=10, ge=1, le=MOST_PAIRS)
    looks: tuple[int, ...] = ()
    margin: float = pydantic.Field(default=0.03, gt=0, lt=1)
    primary: bool = True
    instead: bool = False
    where: Filter = {}
    only: Literal["", "fastest"] = ""
    arms: tuple[Any, ...] | None = None
    first: int | None = pydantic.Field(default=None, ge=1)
    after: int | None = pydantic.Field(default=None, ge=1)
    also: tuple[Any, ...] = ()
    shared: bool | None = None
    probes: int | None = pydantic.Field(default=None, ge=0)

    @property
    def shares_blocks(self) -> bool:
        """Whether all arms of a group stand in one block; unless said, those over runtimes do."""
        return self.over == "runtime" if self.shared is None else self.shared

    @property
    def probe_pairs(self) -> int:
        """Pairs of serial probes after a FASTER or SLOWER."""
        return (PROBES if self.over == "runtime" else 0) if self.probes is None else self.probes

    @property
    def most_pairs(self) -> int:
        """Pairs at the last look."""
        return self.looks[-1] if self.looks else self.pairs


def check(
    where: str,
    contrast: ContrastSpec,
    known: Collection[Any],
    fields: Collection[str],
) -> None:
    """Judge one ``[[contrasts]]`` entry; raises SpecError naming key, value and what is allowed.

    ``known``: the values that the matrix names of what it is over.
    """
    if contrast.over != "pipeline" and contrast.over not in fields:
        allowed = ", ".join(sorted(fields))
        raise SpecError(f"{where}.over: unknown key {contrast.over!r}; allowed: {allowed}")
    if not contrast.caches:
        raise SpecError(f"{where}.caches: the list is empty; leave it out for the default")
    for cache in contrast.caches:
        check_cache(f"{where}.caches", cache)
    check_filter(f"{where}.where", contrast.where, fields)
    _check_values(where, contrast, known)
    _check_numbers(where, contrast)


def check_ladder(
    ladder: LadderSpec, extra: Sequence[Sequence[str]], fields: Collection[str]
) -> None:
    """Judge ``[ladder]`` and the stages of each ``[[cases]]`` entry; raises SpecError."""
    for where, stages in [("ladder.stages", ladder.stages)] + [
        (f"cases[{i}].stages", found) for i, found in enumerate(extra)
    ]:
        for stage in stages:
            if stage not in STAGES:
                raise SpecError(f"{where}: unknown stage {stage!r}; allowed: {', '.join(STAGES)}")
    for key in ("stages", "caches"):
        if not getattr(ladder, key):
            raise SpecError(f"ladder.{key}: the list is empty; leave it out for the default")
    for cache in ladder.caches:
        check_cache("ladder.caches", cache)
    check_filter("ladder.only", ladder.only, fields)


def check_filter(where: str, wanted: Filter, fields: Collection[str]) -> None:
    """Judge a filter of cases; raises SpecError."""
    for key, values in wanted.items():
        if key not in fields:
            allowed = ", ".join(sorted(fields))
            raise SpecError(f"{where}: unknown key {key!r}; allowed: {allowed}")
        if not values:
            raise SpecError(f"{where}.{key}: the list is empty; give at least one value")
        for value in values if key == "runtime" else ():  # one that is not here is left out later
            registry.load("runtimes", str(value))


def check_passes(
    where: str, wanted: Filter, cases: Sequence[Case], said: Mapping[str, Sequence[Any]]
) -> None:
    """Judge whether cases pass a filter; raises SpecError naming the values that there are.

    ``said``: key -> the values that the matrix names, some of whose cases may not be there.  Any
    runtime may be named: one that is not here is left out of a suite.
    """
    rest = {key: values for key, values in wanted.items() if key != "runtime"}
    for key, values in rest.items():
        for value in values:
            if value not in said[key] and not any(is_value(c, key, value) for c in cases):
                there = said[key] or [c.memory_bytes if key == "memory" else getattr(c, key)
                                      for c in cases]  # fmt: skip
                raise SpecError(
                    f"{where}.{key}: no case has {value!r}; allowed: "
                    f"{', '.join(dict.fromkeys(map(str, there)))}"
                )
    if rest and not any(matches(case, rest) for case in cases):
        raise SpecError(
            f"{where}: {rest} leaves no case; allowed: values that some case has together"
        )


def matches(case: Case, wanted: Filter) -> bool:
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
    """Return a cache state as text: cold, warm, or a fraction strictly between 0 and 1."""
    if cache in ("cold", "warm"):
        return str(cache)
    if isinstance(cache, float) and 0 < cache < 1:
        return f"{cache:g}"
    raise SpecError(
        f"{where}: {cache!r} is unknown; allowed: cold, warm or a fraction such as 0.35"
    )


def _check_values(where: str, contrast: ContrastSpec, known: Collection[Any]) -> None:
    # runtimes that are not here are left out of a suite, so any that is known may be named
    allowed = list(registry.names("runtimes")) if contrast.over == "runtime" else list(known)
    if contrast.over == "pipeline":
        allowed = [registry.ALIASES.get(str(v), str(v)) for v in known]
    for key, values in (("arms", contrast.arms or ()), ("also", contrast.also)):
        for value in values:
            name = registry.ALIASES.get(str(value), value) if contrast.over == "pipeline" else value
            if name not in allowed:
                raise SpecError(
                    f"{where}.{key}: {value!r} is no value of {contrast.over}; allowed: "
                    f"{', '.join(sorted(map(str, allowed)))}"
                )
            if value == contrast.base:
                raise SpecError(f"{where}.{key}: {value!r} is the base already; name the others")
    if contrast.arms == ():
        raise SpecError(f"{where}.arms: the list is empty; leave it out for all")
    if contrast.also and not contrast.shares_blocks:
        raise SpecError(
            f"{where}.also: {contrast.also[0]!r} needs blocks that all arms share; set shared = "
            "true"
        )


def _check_numbers(where: str, contrast: ContrastSpec) -> None:
    looks = contrast.looks
    ascend = all(a < b for a, b in zip(looks, looks[1:], strict=False))
    if looks and (looks[0] < FLOOR_PAIRS or not ascend or looks[-1] > MOST_PAIRS):
        raise SpecError(
            f"{where}.looks: {list(looks)} is not possible; allowed: ascending numbers of pairs, "
            f"{FLOOR_PAIRS} to {MOST_PAIRS}, such as [10, 20, 30]"
        )
    if looks and "pairs" in contrast.model_fields_set and contrast.pairs != looks[-1]:
        raise SpecError(
            f"{where}.pairs: {contrast.pairs} against looks {list(looks)}; leave pairs out: the "
            "last look is the number of pairs"
        )
    if contrast.first and contrast.after:
        raise SpecError(f"{where}.after: {contrast.after} beside first; allowed: one of the two")
    if 0 < contrast.probe_pairs < MIN_PROBES:
        raise SpecError(
            f"{where}.probes: {contrast.probes} is too few; allowed: 0, or {MIN_PROBES} and more"
        )
