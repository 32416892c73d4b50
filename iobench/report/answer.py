"""The answer of a suite in a sentence or a few: what each arm costs, and what stayed open."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from iobench.analysis.contrast_results import ContrastResult
from iobench.report import contrast_words
from iobench.report.numbers import percent

#: Verdicts in the order in which they are listed.
_TOLD = ("SLOWER", "FASTER", "EQUIVALENT")


def sentences(contrasts: Sequence[ContrastResult]) -> list[str]:
    """Return what the primary contrasts say, [] where there are none.

    ``docker and apptainer are within 3 % of bare, in 5 comparisons each; start-up +0.2 and
    +0.9 s.``
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
    counts = [len(of_arm) for of_arm in found]
    alike = len(set(counts)) == 1
    counted = f"{_listed(map(str, counts[:1] if alike else counts))} comparison"
    margin = percent(max(c.margin for of_arm in found for c in of_arm)).replace(".0", "")
    text = (
        f"{_listed(arm for arm, _ in names)} {'are' if several else 'is'} within {margin} of "
        f"{_listed(dict.fromkeys(base for _, base in names))}, in "
        f"{counted}{'s' * (max(counts) > 1)}{' each' * (several and alike)}"
    )
    started = _started(found)
    return f"{text}; start-up {started}." if started else f"{text}."


def _mixed(arm: str, base: str, found: Sequence[ContrastResult]) -> str:
    """Return one arm's results by verdict, then what could not be decided and why."""
    parts = []
    for verdict in _TOLD:
        these = [c for c in found if c.outcome.verdict == verdict]
        if these and verdict == "EQUIVALENT":
            margin = percent(max(c.margin for c in these)).replace(".0", "")
            parts.append(f"EQUIVALENT within {margin} in {len(these)} of {len(found)}")
        elif these:
            parts.append(f"{verdict} in {', '.join(_where(c) + _by(c) for c in these)}")
    open_ = [c for c in found if c.outcome.verdict not in _TOLD]
    if open_:
        parts.append(f"not decided in {'; '.join(_where(c) + _why(c) for c in open_)}")
    started = _started([found])
    start = f" Start-up {started}." if started else ""
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
        return f" ({found.note or ('no reason given' if contrast.pairs else 'no pair')})"
    parts = [contrast_words.needed(contrast)]
    if found.smallest_effect is not None:
        parts.insert(0, f"{contrast_words.resolved(contrast)} could be seen")
    if found.log_sd is not None:
        parts.insert(0, f"pairs vary by {percent(found.log_sd)}")
    return f" ({'; '.join([', '.join(parts), *contrast.causes])})"


def _started(arms: Sequence[Sequence[ContrastResult]]) -> str:
    """Return ``+0.2 and +0.9 s``, of each arm the median; "" where it is not known of all.

    Where they ran on different numbers of nodes: ``+0.2 s on 1 node, +0.4 s on 2 nodes``.
    """
    nodes = sorted({_nodes(c) for found in arms for c in found if c.startup_s})
    texts = []
    for n in nodes:
        added = [
            [c.startup_s.value for c in found if c.startup_s and _nodes(c) == n] for found in arms
        ]
        if all(added):
            where = f" on {n} node{'s' * (n > 1)}" * (len(nodes) > 1)
            texts.append(f"{_listed(f'{median(of_arm):+.1f}' for of_arm in added)} s{where}")
    return ", ".join(texts)


def _nodes(contrast: ContrastResult) -> int:
    return max([1, *(len(each.nodes) for each in contrast.allocations)])


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
