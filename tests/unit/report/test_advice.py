"""Advice says each remedy once, at the first of the cases that it is for."""

from __future__ import annotations

import dataclasses

from iobench.advise.findings import Finding
from iobench.equations.stats import Interval
from iobench.report import words

FINDING = Finding(
    case="torch:jpeg",
    cache="cold",
    cause="queue",
    symptom="steps wait",
    remedy="raise prefetch",
    evidence={},
    gain=Interval(1.2, 1.1, 1.3, 0.95, 10, "t"),
    source="",
)


def test_the_same_remedy_is_said_once() -> None:
    found = [
        FINDING,
        dataclasses.replace(FINDING, cause="none", symptom="fast", remedy="", gain=None),
        dataclasses.replace(FINDING, symptom="steps wait long", case="torch:lmdb", gain=None),
        dataclasses.replace(FINDING, cache="warm"),
        dataclasses.replace(FINDING, remedy="raise workers", gain=None),
    ]
    assert words.grouped_advice(found) == [
        (
            "torch:jpeg (cold, warm)",
            "steps wait: raise prefetch; expected gain 1.20 x (1.10 to 1.30)",
        ),
        ("torch:lmdb (cold)", "steps wait long: the same"),
        ("torch:jpeg (cold)", "fast"),
        ("torch:jpeg (cold)", "steps wait: raise workers"),
    ]
