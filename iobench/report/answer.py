"""The answer of a suite in a sentence or a few: what each arm costs, and what stayed open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median, stdev

from iobench.analysis.contrast_results import ContrastResult
from iobench.report import contrast_words
from iobench.report.numbers import percent

#: Verdicts in the order in which they are told.
_TOLD = ("SLOWER", "FASTER", "EQUIVALENT")


def sentences(contrasts: Sequence[ContrastResult]) -> list[str]:
    """Return what the primary contrasts say, [] where there are none.

    ``docker and apptainer cost nothing that 3 % could show, in 5 of 5 comparisons each; they add
    0.2 and 0.9 s of start-up.``
    """
    asked = [c for c in contrasts if c.primary and c.over]
    arms: dict[tuple[str, str], list[ContrastResult]] = {}
    for c in asked:
        arms.setdefault((c.arm_name, c.base_name) if c.case else ("", c.base), []).append(c)
    equal = {names: found for names, found in arms.items() if names[0] and _all_equal(found)}
    lines = [_nothing(list(equal), list(equal.values()))] if equal else []
    return lines + [_mixed(*names, found) for names, found in arms.items() if names not in equal]


def _all_equal(found: Iterable[ContrastResult]) -> bool:
    return all(c.outcome.verdict == "EQUIVALENT" for c in found)


def _nothing(names: Sequence[tuple[str, str]], found: Sequence[Sequence[ContrastResult]]) -> str:
    several = len(names) > 1
    counts = dict.fromkeys(len(of_arm) for of_arm in found)
    plural = "s" * (max(counts) > 1)
    margin = percent(max(c.margin for of_arm in found for c in of_arm)).replace(".0", "")
    text = (
        f"{_listed(arm for arm, _ in names)} {'cost' if several else 'costs'} nothing against "
        f"{_listed(dict.fromkeys(base for _, base in names))} that {margin} could show, in "
        f"{_listed(map(str, counts))} comparison{plural}{' each' * several}"
    )
    added = [s for s in map(_startup_s, found) if s is not None]
    if len(added) == len(names):
        seconds = _listed(f"{s:.1f}" for s in added)
        text += f"; {'they add' if several else 'it adds'} {seconds} s of start-up"
    return f"{text}."


def _mixed(arm: str, base: str, found: Sequence[ContrastResult]) -> str:
    """Return one arm's results by verdict, then what could not be decided and why."""
    parts = []
    for verdict in _TOLD:
        told = [c for c in found if c.outcome.verdict == verdict]
        if told and verdict == "EQUIVALENT":
            margin = percent(max(c.margin for c in told)).replace(".0", "")
            parts.append(f"EQUIVALENT within {margin} in {len(told)} of {len(found)}")
        elif told:
            parts.append(f"{verdict} in {', '.join(_where(c) + _by(c) for c in told)}")
    open_ = [c for c in found if c.outcome.verdict not in _TOLD]
    if open_:
        parts.append(f"not decided in {'; '.join(_where(c) + _why(c) for c in open_)}")
    added = _startup_s(found)
    start = "" if added is None else f" Start-up {added:+.1f} s."
    who = f"{arm} against {base}" if arm else f"Against {base}"
    return f"{who}: {'; '.join(parts)}.{start}"


def _where(contrast: ContrastResult) -> str:
    named = contrast.case or contrast.arm
    return f"{named} {contrast.stage} {contrast.cache.strip('-')}".strip()


def _by(contrast: ContrastResult) -> str:
    return f" (time ratio {contrast_words.ratio(contrast.outcome)})"


def _why(contrast: ContrastResult) -> str:
    """Return what kept a contrast from a verdict, and what would decide it."""
    found = contrast.outcome
    if found.verdict != "INCONCLUSIVE":
        return f" ({found.note or 'no pair'})"
    spread = stdev(map(math.log, found.ratios)) if len(found.ratios) > 1 else 0.0
    return (
        f" (pairs vary by {percent(spread)}, {contrast_words.resolved(contrast)} could be seen; "
        f"{found.pairs_needed} more pairs)"
    )


def _startup_s(found: Sequence[ContrastResult]) -> float | None:
    known = [c.startup_s.value for c in found if c.startup_s]
    return median(known) if known else None


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
