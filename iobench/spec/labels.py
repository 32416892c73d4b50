"""Names of cases: the pipeline, and what differs from the other cases of its suite."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from iobench.core import registry
from iobench.core.cases import Case

#: Case fields that a user names by ``pipeline``.
PIPELINE_FIELDS = ("loader", "format", "content")

#: Case fields that no name shows: the pipeline is its beginning, the layout follows from options.
_NAMELESS = ("label", "name", "layout", *PIPELINE_FIELDS)


def label(cases: Sequence[Case], extra: int, usual: Case | None = None) -> tuple[Case, ...]:
    """Name each case by its pipeline and what differs from the others.

    The last ``extra`` cases stand beside the matrix: they name what differs from it, unless the
    spec names them.  ``usual``: in
    a study of one factor after the other, the case that all vary: each names what is different
    there, as long as all names differ.
    """
    if usual is not None:
        short = tuple(_named(c, _varying([c, usual])) for c in cases)
        if len({case.label for case in short}) == len(cases):
            return short
    matrix = cases[: len(cases) - extra] or cases
    out = []
    for i, case in enumerate(cases):
        same = [c for c in matrix if c.pipeline == case.pipeline]
        if i >= len(matrix):
            same = [*(same or matrix), *cases[len(matrix) :]]
        names = _varying(same)
        if case.world_size > 1 and "world_size" not in names:  # a rate of several ranks says so
            names.append("world_size")
        if case.nodes > 1 and "nodes" not in names:
            names.append("nodes")
        out.append(_named(case, names))
    return tuple(out)


def _named(case: Case, names: Sequence[str]) -> Case:
    parts = [f"{n}={_short(getattr(case, n))}" for n in names]
    return dataclasses.replace(case, label=case.name or " ".join([case.pipeline, *parts]))


def _varying(cases: Sequence[Case]) -> list[str]:
    names = [f.name for f in dataclasses.fields(Case) if f.name not in _NAMELESS]
    if all(c.image == registry.home_stack(c.trainer, c.loader) for c in cases):
        names.remove("image")  # it follows from the others
    return [n for n in names if len({repr(getattr(c, n)) for c in cases}) > 1]


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{k}:{v}" for k, v in value.items()) or "-"
    return str(value)
