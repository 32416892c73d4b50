"""A contrast in words, the same in the terminal and in HTML."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from iobench.analysis.contrast_results import (
    AllocationResult,
    ContrastResult,
    Outcome,
    StagingResult,
)
from iobench.report import numbers, words
from iobench.report.numbers import NONE, bracketed, limits, milliseconds, number, percent

#: So many pairs and more are not counted.
MOST_PAIRS = 10_000
#: At most so many allocations of a contrast are listed.
ALLOCATIONS = 4
#: Calls that are always reported for a difference.
CALLS = ("open", "read")


def outcome(contrast: ContrastResult) -> str:
    """Return one sentence: who, by how much, how sure, and what could have been seen."""
    found, arm, base = contrast.outcome, contrast.arm, contrast.base
    if found.ratio is None:
        return f"{arm} against {base}: {found.note}"
    text = {
        "FASTER": f"{arm} is {_faster(found.ratio)} {base}",
        "SLOWER": f"{arm} takes {numbers.ratio(found.ratio)} x the time of {base}",
        "EQUIVALENT": f"{arm} and {base} are within {percent(contrast.margin)} of each other",
        "INCONCLUSIVE": f"{arm} against {base} is not resolved: {needed(contrast)}",
    }.get(found.verdict, f"{arm} against {base}: no verdict ({found.note})")
    spread = [limits(found.simultaneous, numbers.ratio), at_90(contrast)]
    return f"{text} (time ratio {', '.join(filter(None, [numbers.ratio(found.ratio), *spread]))})"


def needed(contrast: ContrastResult, *, brief: bool = False) -> str:
    """Return how many pairs an INCONCLUSIVE contrast lacks, by the spread that was seen, and unless
    ``brief`` the time that their blocks take, all arms together.
    """
    more = contrast.outcome.pairs_needed
    if more is None:
        return "more pairs needed"
    if more >= MOST_PAIRS:
        return f"over {MOST_PAIRS:,} more pairs needed"
    text = f"about {more:,} more pair{'s' * (more > 1)} needed"
    if brief or not contrast.block_s:
        return text
    return f"{text} ({numbers.duration(more * contrast.block_s)})"


def _faster(ratio: float) -> str:
    if ratio > 0.5:
        return f"{percent(1 / ratio - 1)} faster than"
    return f"{number(1 / ratio)} x as fast as"


def sentence(contrast: ContrastResult, *, brief: bool = False) -> str:
    """Return the whole result of one contrast in one line; ``brief``: what differs is only counted.

    ``torch:lmdb load cold: docker / bare = 1.004 [0.996, 1.012], 12 pairs, EQUIVALENT within 3 %;
    start-up +0.41 s [0.38, 0.45]; confounders: none.``
    """
    what = f"{contrast.case} {contrast.stage} {contrast.cache.strip('-')}".strip()
    arms = f"{contrast.arm_name} / {contrast.base_name}"
    if contrast.outcome.ratio is None:
        return f"{what}: {arms}: {contrast.outcome.note}."
    form = numbers.ratio3
    limits = bracketed(contrast.outcome.simultaneous, form)
    ratio = f"{form(contrast.outcome.ratio)} {limits}".rstrip()
    pairs = f"{contrast.pairs} pair{'s' * (contrast.pairs != 1)}"
    count = len(contrast.confounders.differences)
    others = f"{count}, listed below" if brief and count else differing(contrast)
    parts = [
        f"{what}: {arms} = {ratio}, {pairs}, {verdict(contrast)}",
        startup(contrast),
        staging(contrast),
        *explained(contrast),
        f"confounders: {others}",
        "" if brief else unequal_threads(contrast),
        "" if brief else contrast.not_separated,
    ]
    return "; ".join(filter(None, parts)) + "."


def verdict(contrast: ContrastResult) -> str:
    """Return the verdict with its margin, what could have been seen, or why there is none."""
    found = contrast.outcome
    if found.verdict == "EQUIVALENT":
        margin, inner = percent(contrast.margin).replace(".0", ""), at_90(contrast)
        return f"{found.verdict} within {margin}{inner and f' ({inner})'}"
    if found.verdict == "INCONCLUSIVE":
        seen = "" if found.smallest_effect is None else f", could see {resolved(contrast)}"
        return f"{found.verdict}{seen}, {needed(contrast)}"
    withheld = found.verdict == "EXPLORATORY" and found.note
    return f"{found.verdict} ({found.note})" if withheld else found.verdict


def at_90(contrast: ContrastResult) -> str:
    """Return the limits that EQUIVALENT rests on where the 95 % interval reaches past the margin.

    ``at 90 %: 0.984 to 1.028``; "" where that interval, which is shown, lies inside as well.
    """
    found, most = contrast.outcome, 1 + contrast.margin
    shown = found.simultaneous
    if found.verdict != "EQUIVALENT" or not shown:
        return ""
    past = shown.high > most or shown.low * most < 1
    return f"at 90 %: {limits(found.simultaneous90, numbers.ratio3)}" if past else ""


def startup(contrast: ContrastResult) -> str:
    """Return ``start-up +0.41 s [0.38, 0.45]``, "" where it was not recorded."""
    entry = contrast.startup_s
    return f"start-up {entry.value:+.2f} s {bracketed(entry)}".rstrip() if entry else ""


def staging(contrast: ContrastResult) -> str:
    """Return ``3.1 s to make (141 MB), pays after 12 epochs (9 to 20)``, "" without a copy.

    With what is predicted for several nodes.
    """
    alone, several = _staged(contrast), _at_nodes(contrast.staging)
    return f"{alone}; {several}" if several else alone


def _at_nodes(found: StagingResult | None) -> str:
    if not found or not found.at_nodes or not found.shared_bytes_per_s:
        return ""
    epochs = [
        "never" if each.pays_after_epochs is None else number(each.pays_after_epochs)
        for each in found.at_nodes
    ]
    return (
        f"predicted for {', '.join(str(each.nodes) for each in found.at_nodes)} nodes: "
        f"{', '.join(epochs)} epochs (each copies all, and the mount gives all together the "
        f"{found.shared_bytes_per_s / 1e6:,.0f} MB/s that this node got)"
    )


def _staged(contrast: ContrastResult) -> str:
    found = contrast.staging
    if not found:
        return ""
    cost = f"{number(found.seconds)} s to make ({found.bytes / 1e6:,.0f} MB)"
    if contrast.outcome.ratio is None or contrast.equal_order is False:
        return cost
    if found.pays_after_epochs is None:
        spread = contrast.outcome.simultaneous
        if found.low is None and spread and spread.limited:
            return f"{cost}, never pays"
        best = "" if found.low is None else f" (at best after {number(found.low)} epochs)"
        return f"{cost}, not seen to pay{best}"
    text = f"{cost}, pays after {number(found.pays_after_epochs)} epochs"
    if found.low is None:
        return text
    last = "never" if found.high is None else number(found.high)
    return f"{text} ({number(found.low)} to {last})"


def attribution(contrast: ContrastResult) -> str:
    """Return the stage that a difference comes from, or why none is named; "" if neither."""
    found = contrast.attribution
    if not found:
        return ""
    if not found.stage:
        return f"not attributed: {found.reason}"
    ms = 1e3 * found.parts[found.stage].value
    return f"attributed to {found.stage} ({ms:+.3f} ms a sample in {found.source})"


def calls(contrast: ContrastResult) -> str:
    """Return the system calls of a difference: open(), read(), and up to three more that differ.

    ``calls a sample: open() 1.0 against 1.0, read() 2.0 against 4.0``
    """
    found = contrast.calls
    if not found:
        return ""
    if found.reason:
        return f"calls n/a: {found.reason}"
    names = [*CALLS, *[n for n in found.differing if n not in CALLS][:3]]
    arm, base = found.arm, found.base
    counts = [f"{n}() {arm.get(n, 0.0):.1f} against {base.get(n, 0.0):.1f}" for n in names]
    return f"calls a sample: {', '.join(counts)}"


def work(contrast: ContrastResult) -> str:
    """Return the cost of a sample in both arms of a difference, "" without one.

    ``a sample: CPU 6.12 ms against 3.20 (kernel 0.310 against 0.050), 107 KiB against 112 from
    storage, 421 KiB against 0 by read()``
    """
    found = contrast.work
    if not found or contrast.outcome.verdict not in ("FASTER", "SLOWER"):
        return ""
    arm, base = found["arm"], found["base"]
    parts = [
        f"CPU {milliseconds(arm.cpu_s)} ms against {milliseconds(base.cpu_s)} "
        f"(kernel {milliseconds(arm.system_s)} ms against {milliseconds(base.system_s)})"
    ]
    if None not in (arm.storage_bytes, base.storage_bytes) and contrast.cache != "warm":
        parts.append(f"{_kib(arm.storage_bytes, base.storage_bytes)} from storage")
    parts.append(f"{_kib(arm.read_bytes, base.read_bytes)} by read()")
    return f"a sample: {', '.join(parts)}"


def _kib(arm: float | None, base: float | None) -> str:
    counts = (NONE if count is None else f"{count / 1024:,.0f}" for count in (arm, base))
    return " KiB against ".join(counts)


def explained(contrast: ContrastResult) -> list[str]:
    """Return short explanations of a difference, [] without one."""
    return [text for text in (attribution(contrast), work(contrast), calls(contrast)) if text]


def differing(contrast: ContrastResult) -> str:
    """Return the confounders: ``none``, ``unknown``, or what differs."""
    found = contrast.confounders
    return "; ".join(found.differences) or ("none found" if found.status == "PASS" else "unknown")


def unequal_threads(contrast: ContrastResult) -> str:
    """Return that the arms read and decode with different numbers of threads, "" where equal."""
    if not contrast.decoding_threads:
        return ""
    arm, base = contrast.decoding_threads
    return f"threads that read and decode: {arm} against {base}"


def confounders(contrast: ContrastResult) -> str:
    """Return PASS, or CONFOUNDED with what differs."""
    found = contrast.confounders
    return ": ".join(filter(None, [found.status, "; ".join(found.differences)]))


def scope(contrast: ContrastResult) -> str:
    """Return what a verdict speaks for, inside a job or across nodes; "" on one host outside.

    ``for job 7 on nodes h1, h2; a claim about the machine needs several allocations``
    """
    found = contrast.allocations
    if not found or (len(found) == 1 and not found[0].job and len(found[0].nodes) < 2):
        return ""
    if len(found) == 1:
        return f"for {_place(found[0])}; a claim about the machine needs several allocations"
    listed = [
        f"{_place(a)}: {a.pairs} pair{'s' * (a.pairs != 1)}, ratio {numbers.ratio(a.ratio)}"
        for a in found[:ALLOCATIONS]
    ]
    listed += [f"{len(found) - ALLOCATIONS} more in analysis.json"] * (len(found) > ALLOCATIONS)
    return (
        f"for {len(found)} allocations ({'; '.join(listed)}); the unit of the interval is the "
        f"{contrast.unit}, not the allocation: for a claim about the machine the ratios of "
        "several allocations are the unit"
    )


def scoped(contrasts: Iterable[ContrastResult]) -> list[str]:
    """Return one line for each different scope, with the arms that it holds for."""
    found = words.grouped((scope(c), c.arm) for c in contrasts if c.allocations)
    return [
        f"verdicts of {'all arms' if len(found) == 1 else ', '.join(arms)} hold {text}"
        for text, arms in found.items()
        if text
    ]


def scopes(contrasts: Iterable[ContrastResult]) -> list[str]:
    """Return each different scope of the primary contrasts that have one, once."""
    return list(dict.fromkeys(filter(None, (scope(c) for c in contrasts if c.primary))))


def _place(allocation: AllocationResult) -> str:
    """Return ``job 7 on nodes h1, h2``."""
    nodes = ", ".join(allocation.nodes)
    where = f"node{'s' * (len(allocation.nodes) > 1)} {nodes}" if nodes else ""
    return " on ".join(filter(None, [f"job {allocation.job}" * bool(allocation.job), where]))


def ratio(outcome: Outcome, digits: int = 3) -> str:
    """Return the ratio as ``0.82 (0.79 to 0.85)``, with its simultaneous interval if it has one."""
    form = functools.partial(numbers.ratio, digits=digits)
    spread = limits(outcome.simultaneous, form)
    return form(outcome.ratio) + (f" ({spread})" if spread else "")


def resolved(contrast: ContrastResult) -> str:
    """Return the smallest effect that noise and pairs could have resolved."""
    return percent(contrast.outcome.smallest_effect)
