"""Figures of a record that are worked out once: its steps are in files, and many results ask."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from iobench.core.records import Record

P = ParamSpec("P")
T = TypeVar("T")


def a_record(function: Callable[Concatenate[Record, P], T]) -> Callable[Concatenate[Record, P], T]:
    """Keep what a pure function of a record (and of plain words) returns, while the record lives.

    A record is frozen, but holds mappings, so it has no hash: its identity is the key.
    """
    known: dict[int, dict[Any, T]] = {}

    @functools.wraps(function)
    def kept(record: Record, /, *args: P.args, **words: P.kwargs) -> T:
        if id(record) not in known:
            known[id(record)] = {}
            weakref.finalize(record, known.pop, id(record)).atexit = False
        found, key = known[id(record)], (args, *sorted(words.items()))
        if key not in found:
            found[key] = function(record, *args, **words)
        return found[key]

    return kept
