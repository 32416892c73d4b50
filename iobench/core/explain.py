"""What is wrong with a document that does not fit a model: the key, its value, what is allowed."""

from __future__ import annotations

import typing
from typing import Any, Iterable, List, Mapping, Sequence, Tuple

from iobench.core.errors import near, shown
from iobench.core.options import wanted


def first(error: Any, model: Any, at: str = "") -> str:
    """Return the first problem of a pydantic.ValidationError in one line.

    ``model``: the class that was validated.  ``at``: the key that holds the document.
    """
    found = error.errors(include_url=False)
    # a key that is missing may be one that is misspelt
    return problem(min(found, key=lambda each: each["type"] == "missing"), model, at)


def problem(found: Mapping[str, Any], model: Any, at: str = "") -> str:
    """Return one problem in a line."""
    known, hint, limits = _walk(model, found["loc"])
    key = dotted(at, known)
    if found["type"] == "missing":
        return f"{key} is missing; give {wanted(hint, limits)}"
    if found["type"] == "extra_forbidden":
        parent = _model(_walk(model, found["loc"][:-1])[1]) or model
        name, value = str(known[-1]), shown(found["input"])
        place = dotted(at, known[:-1])
        words = (
            f"unknown key {shown(name)} (value {value}){near(name, sorted(parent.model_fields))}"
        )
        return f"{place}: {words}" if place else words
    value = shown(found["input"])
    if found["type"] == "value_error":
        words = found["msg"].partition("Value error, ")[2]
        return f"{key} = {value}: {words}" if key else words
    return f"{key} = {value}; allowed: {wanted(hint, limits)}"


def dotted(at: str, path: Iterable[Any]) -> str:
    """Return a place as ``contrasts[0].stage``; a key that is no plain word is quoted."""
    out = at
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            word = part if part.replace("_", "").isalnum() and part.isascii() else shown(part)
            out += f".{word}" if out else word
    return out


def _walk(model: Any, loc: Sequence[Any]) -> Tuple[List[Any], Any, Sequence[Any]]:
    """Return the part of a place that is in the document, and the type and limits of its value."""
    known: List[Any] = []
    hint: Any = model
    limits: Sequence[Any] = ()
    for part in loc:
        found = _model(hint)
        if found is not None:
            field = found.model_fields.get(str(part))
            hint = field.annotation if field else None
            limits = [field.description, *field.metadata] if field else ()
        elif inner := _inner(hint):
            hint, limits = inner, ()
        else:  # a member of a union, or the mark of a table's key
            break
        known.append(part)
    return known, hint, limits


def _inner(hint: Any) -> Any:
    """Return the type of a list's or a table's values; None: it holds none."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (tuple, list):
        return args[0]
    if origin is dict:
        return args[1]
    if origin is typing.Literal:
        return None
    return next(filter(None, map(_inner, args)), None)


def _model(hint: Any) -> Any:
    """Return the model that a type is, or may be; None: it is none."""
    if hasattr(hint, "model_fields"):
        return hint
    alternatives = typing.get_args(hint) if type(None) in typing.get_args(hint) else ()
    return next((each for each in alternatives if hasattr(each, "model_fields")), None)
