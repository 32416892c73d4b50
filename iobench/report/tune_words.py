"""What a search found, in words: the answer, each gain, what was left out."""

from __future__ import annotations

from collections.abc import Mapping

from iobench.core.cases import Plan
from iobench.core.records import Record
from iobench.report import words
from iobench.report.numbers import NONE, bracketed
from iobench.run.store import Store
from iobench.tune import settings
from iobench.tune.answer import Gain, TuneResult, answer


def answer_of(store: Store, plan: Plan, records: list[Record]) -> TuneResult | None:
    """Return what the search of this folder says; None where the suite is no search.

    Raises ResultsError for one whose settings cannot be read.
    """
    if not (store.folder / settings.FILE).exists():
        return None
    return answer(plan, records, settings.load(store.folder))


def title(found: TuneResult) -> str:
    """Return the answer in a line: ``Change: 1.86 times as fast as the current settings``."""
    return f"{words.capitalised(found.verdict)}: {found.words}"


def gain(found: Gain) -> str:
    """Return ``gain over train.py: 1.86 x [1.81, 1.92], 12 pairs``, and what is to be known."""
    times = f"{found.times.value:.2f} x" if found.times else NONE
    note = f" ({found.note})" if found.note else ""
    return f"gain over {found.than}: {times} {bracketed(found.times)}, {found.pairs} pairs{note}"


def left_out(found: Mapping[str, str]) -> list[str]:
    """Return what was not tried, one line a reason; ``found``: knob or pipeline -> why."""
    names = words.grouped((why, name) for name, why in found.items())
    return [f"not tried: {', '.join(which)}: {why}" for why, which in names.items()]
