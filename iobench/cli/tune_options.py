"""What ``iobench tune`` is asked, as its options say it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any

from iobench.core import registry, units
from iobench.core.errors import SpecError, near, shown
from iobench.tune.knobs import KNOBS
from iobench.tune.settings import TuneSettings, Value
from iobench.tune.space import PIPELINE


def _formats(text: str) -> tuple[str, ...]:
    found = tuple(filter(None, text.split(",")))
    for name in found:
        registry.load("formats", name)
    return found


def _batches(text: str) -> tuple[int, ...]:
    words = list(filter(None, text.split(",")))
    if wrong := [word for word in words if not word.isdecimal() or not int(word)]:
        raise SpecError(f"--batch {shown(wrong[0])}; allowed: whole numbers, such as 32,64")
    return tuple(sorted(map(int, words)))


def _only(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """Return knob -> the values that may be tried.  Raises SpecError for one that is not known."""
    known = [PIPELINE, *(knob.field for knob in KNOBS)]
    found = {}
    for text in texts:
        name, _, values = text.partition("=")
        if name not in known or not values:
            raise SpecError(f"--only {shown(text)} is not KNOB=VALUE,VALUE{near(name, known)}")
        found[name] = tuple(map(_value, values.split(",")))
    return found


def _value(text: str) -> Value:
    words: dict[str, Value] = {"true": True, "false": False}
    return int(text) if text.isdecimal() else words.get(text.lower(), text)


def check_script(options: dict[str, Any]) -> None:
    """Raise SpecError for what a script sets in its own code, or has its own of."""
    names = ("data", "formats", "batches", "memory", "label", "libraries")
    given = [name for name in names if options[name]]
    if options["script"] and given:
        name = {"batches": "batch", "label": "case"}.get(given[0], given[0])
        raise SpecError(f"--{name} has no effect with --script: leave one of the two out")


def asked_of(options: dict[str, Any]) -> TuneSettings:
    """Return what is asked of a search.  Raises SpecError."""
    return TuneSettings(
        minutes=options["minutes"],
        cache=options["cache"],
        current="",
        margin=options["margin"],
        cores=options["cores"] or len(os.sched_getaffinity(0)),
        memory_bytes=units.nbytes(options["memory"]) if options["memory"] else 0,
        any_order=not options["shuffled"],
        formats=_formats(options["formats"]),
        script=tuple(shlex.split(options["script"])),
        seconds=options["seconds"],
        batches=_batches(options["batches"]),
        core_hours=options["core_hours"] or 0.0,
        only=_only(options["only"]),
        libraries=options["libraries"],
    )
