"""Parameters of tests of which some are left to `make test-breadth`."""

from __future__ import annotations

from typing import Any, Iterable, List

import pytest


def rows(now: Iterable[Any], more: Iterable[Any]) -> List[Any]:
    """Return the parameters of a test, ``more`` with the marker breadth; a tuple is a row."""
    return [*map(_row, now), *(_row(row, pytest.mark.breadth) for row in more)]


def first(values: Iterable[Any], now: Iterable[Any]) -> List[Any]:
    """Return the parameters of a test, those that are not in ``now`` with the marker breadth."""
    among = [*now]
    return [_row(v) if v in among else _row(v, pytest.mark.breadth) for v in values]


def _row(values: Any, *marks: pytest.MarkDecorator) -> Any:
    return pytest.param(*(values if isinstance(values, tuple) else (values,)), marks=marks)
