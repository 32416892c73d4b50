"""What a user may write under ``*_options``: judged by the signature of a member's ``make``."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import math
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Sequence

from iobench.core.errors import SpecError, near, shown

#: Keywords of a trainer's ``make`` that are no options.
GIVEN = ("batch", "rank", "world_size", "peers", "sharers", "labels")
#: What TOML's whole numbers hold; no option means a larger number either.
HUGE = 2**63
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_LIMITS = {"ge": "at least {}", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that an option may have, in its annotation: ``Annotated[int, Range(0, 64)]``."""

    ge: float = 0
    le: float = 2**31 - 1


#: Annotations of options: a number of things, seconds of a trial's part, a rate of learning.
Count = Annotated[int, Range()]
Seconds = Annotated[float, Range(0, 86_400)]
Rate = Annotated[float, Range(0, 1_000_000)]


def accepted(make: Any) -> dict[str, inspect.Parameter]:
    """Return option -> its parameter, the annotation resolved, of a member's ``make``.

    Options are the keyword-only parameters that TOML can express: no callables, and not what the
    case or its launcher sets (:data:`GIVEN`).
    """
    function = make.__init__ if inspect.isclass(make) else make
    hints = typing.get_type_hints(function, include_extras=True)
    return {
        name: p.replace(annotation=hints.get(name, Any))
        for name, p in inspect.signature(make).parameters.items()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
        and name not in GIVEN
        and typing.get_origin(hints.get(name)) is not collections.abc.Callable
    }


def check_options(where: str, make: Any, options: Mapping[str, Any]) -> None:
    """Raise SpecError for an option that ``make`` does not take, or that may not have its value."""
    known = accepted(make) if options else {}
    for key, value in options.items():
        if key not in known:
            raise SpecError(f"{where}: unknown option {shown(key)}{near(key, sorted(known))}")
        hint = known[key].annotation
        if not _fits(value, hint):
            raise SpecError(f"{where}: option {key} = {shown(value)}; allowed: {wanted(hint)}")


def wanted(hint: Any, limits: Sequence[Any] = ()) -> str:
    """Return what values an annotation allows, in words.

    ``limits``: objects with ``ge``, ``gt``, ``le``, ``lt`` or ``max_length``, or the words
    themselves.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    said = [limit for limit in limits if isinstance(limit, str)]
    if said:
        return said[0]
    if origin is typing.Annotated:
        return wanted(args[0], (*limits, *args[1:]))
    if origin is Literal:
        return ", ".join(str(value) or '""' for value in args)
    kinds = [arg for arg in args if arg is not type(None)]
    if origin in (tuple, list):
        most = "".join(f", at most {n.max_length}" for n in limits if hasattr(n, "max_length"))
        of = "" if args[0] is Any else f", each {wanted(args[0])}"
        return f"a list{of}{most}"
    if origin is dict or hasattr(hint, "model_fields"):
        return "a table of keys and values"
    kinds = [kind for kind in kinds if not (kind is int and float in kinds)]
    if kinds:
        return " or ".join(wanted(kind, limits) for kind in kinds)
    words = [_WORDS.get(hint, "another value")]
    for limit in (each for one in limits for each in getattr(one, "metadata", [one])):
        found = {
            text: getattr(limit, name) for name, text in _LIMITS.items() if hasattr(limit, name)
        }
        words += [text.format(int(v) if v == int(v) else v) for text, v in found.items()]
        if hasattr(limit, "max_length"):
            words.append(f"at most {limit.max_length} characters")
    return ", ".join(words)


def _fits(value: Any, hint: Any, limits: Sequence[Any] = ()) -> bool:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _fits(value, args[0], (*limits, *args[1:]))
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in args)
    if origin is typing.Union:
        return any(_fits(value, arg, limits) for arg in args)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and not (math.isfinite(value) and abs(value) < HUGE):
        return False
    if number and not all(limit.ge <= value <= limit.le for limit in limits):
        return False
    if hint is float:
        return number
    return hint is Any or type(value) is hint
