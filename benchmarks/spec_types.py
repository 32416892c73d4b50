"""An independent look at a spec's types: which values are not of their key's annotation."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import pydantic

from iobench.core import registry
from iobench.core.cases import Case
from iobench.core.options import accepted
from iobench.core.striping import striping
from iobench.spec.schema import CaseSpec, Spec

#: Keys and indices from a document's top, and the value there.
Place = tuple[tuple[str | int, ...], Any]


def misfits(document: Mapping[str, Any]) -> Iterator[Place]:
    """Yield places and values of a document that are not of the type that the schema declares."""
    yield from _of_model(Spec, document, ())


def _of_model(model: type[pydantic.BaseModel], value: Any, at: tuple[Any, ...]) -> Iterator[Place]:
    for key, inner in value.items():
        field = model.model_fields.get(key)
        if key == "matrix":
            for table in [inner] if isinstance(inner, dict) else inner:
                yield from _of_table(table, (*at, key))
        elif field is None:
            yield (*at, key), inner
        else:
            yield from _of(field.annotation, inner, (*at, key))


def _of_table(table: dict[str, Any], at: tuple[Any, ...]) -> Iterator[Place]:
    for key, values in table.items():
        for value in values if isinstance(values, list) else [values]:
            yield from _of(CaseSpec.model_fields[key].annotation, value, (*at, key))


def option_misfits(cases: Sequence[Case]) -> Iterator[Place]:
    """Yield the options and striping of cases that are not of the type that is declared."""
    for case in cases:
        for axis in ("loader", "format", "trainer", "runtime", "launcher"):
            known = accepted(registry.load(f"{axis}s", getattr(case, axis)).make)
            for key, value in getattr(case, f"{axis}_options").items():
                if key not in known or not fits(known[key].annotation, value):
                    yield (f"{axis}_options", key), value
        spread = accepted(striping)
        for key, value in case.striping.items():
            if key not in spread or not fits(spread[key].annotation, value):
                yield ("striping", key), value


def _of(hint: Any, value: Any, at: tuple[Any, ...]) -> Iterator[Place]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        yield from _of(args[0], value, at)
    elif isinstance(hint, type) and issubclass(hint, pydantic.BaseModel):
        yield from _of_model(hint, value, at)
    elif origin in (tuple, list) and isinstance(value, list):
        for inner in value:
            yield from _of(args[0], inner, at)
    elif not fits(hint, value):
        yield at, value


def fits(hint: Any, value: Any) -> bool:
    """Tell whether a value is of an annotation, its limits aside."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return fits(args[0], value)
    if origin in (typing.Union, types.UnionType):
        return any(not list(_of(arg, value, ())) for arg in args if arg is not type(None))
    if origin is Literal:
        return value in args
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return hint is Any or type(value) is (origin or hint)
