"""What a user may write under ``*_options``: judged by the signature of a member's ``make``."""

from __future__ import annotations

import collections.abc
import inspect
import typing
from collections.abc import Mapping
from typing import Any

from iobench.core.errors import SpecError

#: Keywords of a trainer's ``make`` that are no options.
GIVEN = ("batch", "rank", "world_size", "sharers", "labels")


def accepted(make: Any) -> dict[str, inspect.Parameter]:
    """Return option -> its parameter, the annotation resolved, of a member's ``make``.

    Options are the keyword-only parameters that TOML can express: no callables, and not what the
    case or its launcher sets (:data:`GIVEN`).
    """
    hints = typing.get_type_hints(make.__init__ if inspect.isclass(make) else make)
    return {
        name: p.replace(annotation=hints.get(name, Any))
        for name, p in inspect.signature(make).parameters.items()
        if p.kind is inspect.Parameter.KEYWORD_ONLY
        and name not in GIVEN
        and typing.get_origin(hints.get(name)) is not collections.abc.Callable
    }


def check_options(where: str, make: Any, options: Mapping[str, Any]) -> None:
    """Raise SpecError for an option that ``make`` does not take, or of another type."""
    import pydantic  # the driver alone checks options

    known = accepted(make)
    for key, value in options.items():
        if key not in known:
            allowed = ", ".join(sorted(known)) or "none"
            raise SpecError(f"{where}: unknown option {key!r}; it takes: {allowed}")
        try:
            pydantic.TypeAdapter(known[key].annotation).validate_python(value, strict=True)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise SpecError(f"{where}: option {key} = {value!r}: {first['msg']}") from None
