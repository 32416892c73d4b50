"""Parameters of tests of which some are left to `make test-breadth`."""

from __future__ import annotations

from typing import Any, Collection, Iterable, List

import pytest


def rows(now: Collection[Any], more: Iterable[Any]) -> List[Any]:
    """Return the parameters of a test, ``more`` with the marker breadth; a tuple is a row."""
    return first([*now, *more], now)


def first(values: Iterable[Any], now: Collection[Any]) -> List[Any]:
    """Return the parameters of a test, those that are not in ``now`` with the marker breadth."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=() if value in now else pytest.mark.breadth,
        )
        for value in values
    ]
