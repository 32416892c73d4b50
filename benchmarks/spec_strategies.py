"""Specs drawn from the schema itself: keys from the models, values from types and registry members.

A new key, option or member is drawn without a change here.
"""

from __future__ import annotations

import datetime
import functools
import json
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import pydantic
import tomllib
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from iobench.core import options, registry, stages, striping, transforms
from iobench.core.cases import STEADY
from iobench.data import recipes
from iobench.spec import contrast_rules, load, schema

#: A place in a document: keys and indices from its top.
Path = tuple[str | int, ...]
_MEMBERS = {axis[:-1]: axis for axis in registry.AXES}
_WITH_OPTIONS = ("loader", "format", "trainer", "runtime", "launcher")
_CONTENTS = ("", "", "", "-raw", "-float")
#: What no key means: not finite, out of any range, of the wrong type, empty, hostile.
ODD: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, 0, -1, 1, -0.5, 1e300, 5e-324, 2**31, 2**63, 10**30, "", " ",
    "nan", "12", "\x1b[31mred", "a\nb", "a\0b", "/dev/zero", "/etc/x.toml",
    "<script>", "=1+1", "$(touch x)", "../..", "é" * 300,
    "x" * 5000, True, False, datetime.date(1979, 5, 27), datetime.time(7, 32), [], {}, [[]], [{}],
    {"a": 1}, [1, "a", True], ["cold", "cold"],
)  # fmt: skip


def pipelines() -> st.SearchStrategy[str]:
    """Draw ``loader:format[-content]`` or an alias."""
    names = [
        f"{loader}:{form}{content}"
        for loader in registry.names("loaders")
        for form in registry.names("formats")
        for content in _CONTENTS
    ]
    readable = [n for n in names if _readable(n)]
    return st.sampled_from([*registry.ALIASES] * 5 + readable * 3 + names)


def _readable(name: str) -> bool:
    loader, _, stored = name.partition(":")
    takes = registry.load("loaders", loader).formats
    contents = registry.load("formats", stored.partition("-")[0]).contents
    return (stored.partition("-")[2] or "jpeg") in contents and (takes is None or stored in takes)


@functools.cache  # making them takes longer than drawing from them
def known_values() -> Mapping[str, st.SearchStrategy[Any]]:
    """Return key -> the values that are known for keys whose type alone does not tell them."""
    word = st.sampled_from
    cache = st.one_of(word(["cold", "warm"]), word(["cold", "warm", STEADY, 0.35, 0.9]))
    members = {name: word(registry.names(axis)) for name, axis in _MEMBERS.items()}
    few = st.lists(cache, min_size=1, max_size=2, unique_by=str)
    rungs = st.lists(word(stages.rungs()), min_size=1, max_size=4, unique=True)
    return {
        **members,
        "runtime": word([*["bare"] * 6, *registry.names("runtimes")]),
        "launcher": word([*["local"] * 6, *registry.names("launchers")]),
        "placement": word([*["bind"] * 6, *registry.names("placements")]),
        "stage": word(stages.contrasted()),
        "stages": rungs,
        "caches": few,
        "pipeline": pipelines(),
        "image": word([*registry.names("stacks") * 3, "docker://debian:12", "/no/such.sif"]),
        "order": word(["stored", "shuffled", "window:64", "shards:64"]),
        "striping": options_of(striping.striping),
        "transform": word(sorted(transforms.TRANSFORMS)),
        "recipe": word(recipes.names()),
        "world_size": word([1, 1, 1, 2]),
        "nodes": word([1, 1, 1, 2]),
        "ranks_per_node": word([1, 1, 2]),
        "workload": word(["resnet50", "unet3d"]),
        "budget": word(["90s", "15m", "4h", "1.5h", "30"]),
        "memory": word(["512M", "4G", "1.5GiB"]),
        "servers_cache": word(["", "64G", "1.5 TiB"]),
        "over": word(sorted([*schema.CaseSpec.model_fields, contrast_rules.NAME])),
        "base": st.one_of(st.just("fastest"), pipelines(), st.integers(1, 4)),
        "looks": word([[], [10, 20], [6, 12, 30]]),
        "name": word(["fuzz", "a.b-c_1"]),
        "stage_to": word(["", "/tmp/staged"]),
    }


def of_type(hint: Any, limits: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """Draw a value of an annotation, mostly within its declared limits."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return of_type(args[0], (*limits, *args[1:]))
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([of_type(a, limits) for a in args if a is not type(None)])
    if hint == schema.Filter:
        return filters()
    if origin in (tuple, list):
        return st.lists(of_type(args[0]), max_size=3, unique_by=repr)
    if origin is dict:
        return st.dictionaries(st.sampled_from(["a", "b"]), of_type(args[1]), max_size=2)
    if isinstance(hint, type) and issubclass(hint, pydantic.BaseModel):
        return table(hint)
    if hint is bool:
        return st.booleans()
    if hint in (int, float):
        return _numbers(hint, limits)
    return st.sampled_from(["", "a", "none"])


@st.composite
def filters(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a filter of cases: key -> values."""
    fields = schema.CaseSpec.model_fields
    keys = draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=2, unique=True))
    return {k: [draw(values_of(k, fields[k]))] for k in keys}


def _numbers(hint: Any, limits: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    limits = tuple(each for x in limits for each in getattr(x, "metadata", [x]))
    low: Any = next((x.ge for x in limits if hasattr(x, "ge")), 0)
    low = next((0.01 for x in limits if hasattr(x, "gt")), low)
    top = next((getattr(x, n) for x in limits for n in ("le", "lt") if hasattr(x, n)), None)
    if hint is int:
        small = st.integers(low, low + 4)
        return st.one_of(
            small, st.sampled_from([8, 32, 64]), st.integers(low, min(top or 2048, 2048))
        )
    return st.sampled_from([low, 0.1, 0.5, 1, 3.0, top or 20.0])


def values_of(key: str, field: FieldInfo) -> st.SearchStrategy[Any]:
    """Draw a value of one key of a model."""
    known = known_values().get(key)
    return known if known is not None else of_type(field.annotation, tuple(field.metadata))


def table(model: type[pydantic.BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw some keys of a model."""
    plain = [key for key in model.model_fields if not key.endswith("_options")]
    keys = st.lists(st.sampled_from(plain), max_size=4, unique=True)
    required = [key for key, field in model.model_fields.items() if field.is_required()]

    @st.composite
    def drawn(draw: st.DrawFn) -> dict[str, Any]:
        chosen = [*required, *(k for k in draw(keys) if k not in required)]
        return {key: draw(values_of(key, model.model_fields[key])) for key in chosen}

    return drawn()


@st.composite
def option_tables(draw: st.DrawFn, case: Mapping[str, Any]) -> dict[str, Any]:
    """Draw options of the members that a case names, by the signatures of their ``make``."""
    loader, _, stored = registry.ALIASES.get(
        case.get("pipeline", "jpeg"), case.get("pipeline", "torch:jpeg")
    ).partition(":")
    members = {
        "loader": loader, "format": stored.partition("-")[0], "trainer": "emulated",
        "runtime": "bare", "launcher": "local",
    }  # fmt: skip
    members |= {key: case[key] for key in members if key in case}
    out = {}
    for key in draw(st.lists(st.sampled_from(_WITH_OPTIONS), max_size=2, unique=True)):
        make = registry.load(f"{key}s", members[key]).make
        if options.accepted(make):
            out[f"{key}_options"] = draw(options_of(make))
    return out


@st.composite
def options_of(draw: st.DrawFn, make: Any) -> dict[str, Any]:
    """Draw up to two options by the signature of what takes them."""
    known = options.accepted(make)
    names = draw(st.lists(st.sampled_from(sorted(known)), max_size=2, unique=True))
    return {name: draw(option_values(known[name])) for name in names}


def option_values(parameter: Any) -> st.SearchStrategy[Any]:
    """Draw a value of an option: of its type, or its default."""
    drawn = of_type(parameter.annotation)
    plain = isinstance(parameter.default, str | int | float)
    return st.one_of(drawn, st.just(parameter.default)) if plain else drawn


@st.composite
def ranks(draw: st.DrawFn) -> dict[str, Any]:
    """Draw several ranks of a trainer that can have them, on one node or two."""
    able = [n for n in registry.names("trainers") if registry.load("trainers", n).ranks]
    word = st.sampled_from
    many = draw(word([{"world_size": 2}, {"nodes": 2, "ranks_per_node": 1}, {"world_size": 4}]))
    case = {
        "trainer": draw(word(able)), "launcher": draw(word(registry.names("launchers"))), **many
    }  # fmt: skip
    if draw(st.booleans()):
        container = [n for n in registry.names("runtimes") if n != "bare"]
        case |= {"runtime": draw(word(container)), "scope": draw(word(["rank", "node"]))}
    return case


@st.composite
def contrasts(draw: st.DrawFn, over: str, values: list[Any]) -> dict[str, Any]:
    """Draw a contrast over these values of a key, the first of them the base."""
    contrast = draw(table(schema.ContrastSpec)) | {"over": over, "base": values[0]}
    for key in {"arms", "also"} & {*contrast}:
        contrast[key] = draw(st.lists(st.sampled_from(values), max_size=2, unique_by=repr))
    return contrast


@st.composite
def matrices(draw: st.DrawFn, case: Mapping[str, Any]) -> dict[str, Any]:
    """Draw a table of values of up to two keys of a case, and maybe of options."""
    fields = schema.CaseSpec.model_fields
    plain = sorted(key for key in fields if not key.endswith("_options"))
    keys = draw(st.lists(st.sampled_from(plain), max_size=2, unique=True))
    found = {
        k: draw(st.lists(values_of(k, fields[k]), min_size=1, max_size=3, unique_by=repr))
        for k in keys
    }
    return found | {k: [v] for k, v in draw(option_tables(case)).items()}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a spec from the schema: many are valid, all have the right shape."""
    case = draw(table(schema.CaseSpec))
    if not draw(st.integers(0, 7)):
        case |= draw(ranks())
    case |= draw(option_tables(case))
    document: dict[str, Any] = {"name": "fuzz", "dataset": {"samples": 640}, "case": case}
    for key, field in schema.Spec.model_fields.items():
        if key in ("name", "case", "matrix", "contrasts") or draw(st.integers(0, 3)):
            continue
        document[key] = draw(values_of(key, field))
    named = draw(st.lists(st.sampled_from(["one", "two", "3rd"]), max_size=3, unique=True))
    compared: list[tuple[str, list[Any]]] = []
    if len(named) > 1 and draw(st.booleans()):
        document["cases"] = [draw(table(schema.ExtraCase)) | {"name": name} for name in named]
        compared.append((contrast_rules.NAME, list(named)))
    if draw(st.booleans()):
        document["matrix"] = draw(matrices(case))
        compared += [(k, v) for k, v in document["matrix"].items() if not k.endswith("_options")]
        if not draw(st.integers(0, 5)):
            document["matrix"] = [document["matrix"], draw(matrices(case))]
    if len(compared) > 0 and draw(st.booleans()):
        over, values = draw(st.sampled_from(compared))
        document["contrasts"] = [draw(contrasts(over, values))]
    return document


@functools.cache
def shipped() -> list[dict[str, Any]]:
    """Return the specs that come with iobench, as documents: to be copied, not changed."""
    return [tomllib.loads((load.SPECS / f"{name}.toml").read_text()) for name in load.shipped()]


def places(value: Any, at: Path = ()) -> Iterator[Path]:
    """Yield every place of a document below its top."""
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        yield (*at, key)
        yield from places(inner, (*at, key))


def get(document: Any, path: Path) -> Any:
    """Return what is at a place."""
    for key in path:
        document = document[key]
    return document


def text_of(value: Any) -> str:
    """Return a TOML value as text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{text_of(str(k))} = {text_of(v)}" for k, v in value.items()) + " }"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(text_of, value)) + "]"
    return str(value.isoformat() if isinstance(value, datetime.date | datetime.time) else value)


def toml(document: Mapping[str, Any]) -> str:
    """Return a document as TOML, a line for each key of its top."""
    return "".join(f"{text_of(str(k))} = {text_of(v)}\n" for k, v in document.items())
