"""What pydantic finds wrong with a spec, in one line that teaches."""

from __future__ import annotations

import inspect
import typing
from typing import Any

import pydantic


def first_error(error: pydantic.ValidationError, whole: type[pydantic.BaseModel]) -> str:
    """Return the first error of reading a ``whole`` (a spec): its key, value, what is allowed."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(p) for p in first["loc"])
    if first["type"] == "missing":
        return f"{key}: is missing"
    if first["type"] == "extra_forbidden":
        return f"{key}: unknown key (value {first['input']!r}){_near(key, whole)}"
    return f"{key} = {first.get('input')!r}: {first['msg']}"


def _near(key: str, whole: type[pydantic.BaseModel]) -> str:
    model: Any = whole
    *parents, _ = key.split(".")
    for part in parents:
        if part.isdigit():
            continue
        hint = model.model_fields.get(part)
        found = _models(hint.annotation) if hint else []
        if not found:
            return ""
        model = found[0]
    return f"; allowed here: {', '.join(sorted(model.model_fields))}"


def _models(annotation: Any) -> list[type[pydantic.BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [m for a in typing.get_args(annotation) for m in _models(a)]
