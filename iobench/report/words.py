"""Cases and suites in words, the same in the terminal and in HTML."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from iobench.advise.findings import Finding
from iobench.analysis.case_results import (
    CaseResult,
    NoCommunication,
    NoHeadOfLine,
    NoStall,
    SampleTimes,
    Spread,
    StallResult,
)
from iobench.analysis.results import SuiteResult, to_json
from iobench.core.records import EXPLORATORY, VALID
from iobench.data import accounting
from iobench.data.accounting import TableLine
from iobench.equations.stats import Interval
from iobench.report.numbers import NONE, duration, limits, milliseconds, number, percent

K = TypeVar("K")
V = TypeVar("V")
#: A stall whose whole interval is below this share of the time is none.
NEGLIGIBLE = 0.05


def rate(case: CaseResult, stage: str, cache: str) -> Interval | None:
    """Return the samples/s of a rung, None if it was not measured.

    ``warm`` also finds a pipeline without files, whose cache state is ``-``.
    """
    return case.rate(stage, cache) or (case.rate(stage, "-") if cache == "warm" else None)


#: Rungs whose rates a summary shows: of a training job, and of what is below it.
OF_JOBS, BELOW = ("load", "train"), ("ceiling", "read", "decode")


def below(cases: Sequence[CaseResult]) -> list[tuple[str, str]]:
    """Return the measured (rung, cache state) pairs of cases that neither loaded nor trained.

    Nothing where one did: then its rates and limits are the summary.
    """

    def measured(stages: Sequence[str]) -> list[tuple[str, str]]:
        pairs = itertools.product(stages, ("cold", "warm"))
        return [pair for pair in pairs if any(rate(case, *pair) for case in cases)]

    return [] if measured(OF_JOBS) else measured(BELOW)


def rungs(case: CaseResult) -> int:
    """Return how many of the rungs that read data have a figure."""
    return sum(
        any(rate(case, stage, cache) for cache in ("cold", "warm"))
        for stage in ("read", "decode", "load", "train")
    )


def au(case: CaseResult, cache: str) -> str:
    """Return AU of a cache state, two decimals; n/a where it would be above 1 (see the remarks)."""
    entry = case.utilisation(cache)
    return f"{min(entry.value, 1.0):.2f}" if entry else NONE


def stall_of(case: CaseResult, kind: str) -> StallResult | None:
    """Return the ``fetch`` or ``prep`` stall, None without a figure."""
    found = case.fetch_stall_s if kind == "fetch" else case.prep_stall_s
    return None if isinstance(found, NoStall) else found


def stall(case: CaseResult, kind: str) -> str:
    """Return ``24 % (0.89 to 1.04 ms)``, of the cold run (fetch) or the warm; n/a without figures.

    Where the interval holds 0: none seen, or not resolved when it holds over 5 % of the time too.
    """
    entry = stall_of(case, kind)
    if entry is None:
        return NONE
    spread = limits(entry, milliseconds)
    train = rate(case, "train", "cold" if kind == "fetch" else "warm")
    said = percent(entry.value * train.value if train else None)
    if no_stall(entry):
        widest = max(abs(entry.low), abs(entry.high))
        small = train is not None and widest * train.value <= NEGLIGIBLE
        said = "none seen" if small else "not resolved"
    return f"{said} ({spread} ms)" if spread else f"{said} ({milliseconds(entry.value)} ms)"


def no_stall(entry: StallResult) -> bool:
    """Return whether the interval of a stall contains 0."""
    return entry.limited and entry.low <= 0 <= entry.high


def communication(case: CaseResult) -> str:
    """Return one line on the cost of several ranks, "" for one, and where no rung was wanted."""
    found = case.comm
    if not found or not any(stage.caches for stage in case.stages.values()):
        return ""
    if isinstance(found, NoCommunication):
        return f"communication n/a: {found.reason}"
    step, alone, own = map(milliseconds, (found.step_s, found.alone_step_s, found.exchange_s))
    spread = limits(found, milliseconds)
    more = f"{milliseconds(found.value)} ms{f' ({spread})' if spread else ''}"
    if found.low <= 0 and (found.limited or found.value <= 0):
        more = f"not resolved, {more}"
    parts = [f"a step takes {step} ms on {found.ranks} ranks and {alone} ms on one"]
    if found.exchange_s is None:
        return f"{parts[0]}: the ranks report no exchange; what they take from each other: {more}"
    parts[0] += f": communication, and what they take from each other: {more}"
    if found.efficiency is not None:
        parts.append(f"efficiency {percent(found.efficiency)}")
    line = f"{', '.join(parts)}; the exchange of gradients takes {own} ms of a step"
    if found.waited_s is None or found.peers_s is None:
        return line
    waited, peers = milliseconds(found.waited_s), milliseconds(found.peers_s)
    return (
        f"{line}, {waited} ms of them after the last rank has its gradients; for that rank the "
        f"others wait up to {peers} ms"
    )


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return key -> its different values, in the order in which they come."""
    found: dict[K, dict[V, None]] = {}
    for key, value in pairs:
        found.setdefault(key, {})[value] = None
    return {key: list(values) for key, values in found.items()}


def remarks(cases: Sequence[CaseResult]) -> list[str]:
    """Return each distinct remark with the cases that it holds for."""
    found = grouped((text, case.case) for case in cases for text in case.remarks)
    return [f"{', '.join(names)}: {text}" for text, names in found.items()]


def handover(case: CaseResult) -> str:
    """Return the cost of bringing a batch from another process, "" if none was brought.

    ``6.31 ms a batch to bring it from another process (copy 6.25, wake-up 0.061)``
    """
    found = case.handover_s
    if not found:
        return ""
    whole, copy, wake = map(milliseconds, (found.median, found.copy, found.wake))
    return f"{whole} ms a batch to bring it from another process (copy {copy}, wake-up {wake})"


def spreads(times: SampleTimes) -> list[tuple[str, Spread]]:
    """Return (part, its spread) of a sample's time, the whole first where there are several."""
    whole = [("whole", times.all)] if len(times.parts) > 1 else []
    return [*whole, *times.parts.items()]


def slowest(times: SampleTimes) -> str:
    """Return ``17 (84.20 ms), 3 (12.10 ms)``: the ids of the slowest samples."""
    return ", ".join(f"{each['id']} ({milliseconds(each['seconds'])} ms)" for each in times.slowest)


def head_of_line(case: CaseResult, cache: str) -> str:
    """Return what delivering batches in order cost at a cache state, and what would be gained."""
    found = case.head_of_line.get(cache)
    if found is None or isinstance(found, NoHeadOfLine):
        return f"{NONE}: {found.reason}" if found else ""
    spread = limits(found.loss_s, milliseconds)
    lost = f"{milliseconds(found.loss_s.value)} ms a sample{f' ({spread})' if spread else ''}"
    return f"in order costs {lost}; in_order = false: {gain(found.gain)}"


def capitalised(text: str) -> str:
    """Return the text with a capital first letter, the others as they are."""
    return text[:1].upper() + text[1:]


def who(cases: Iterable[tuple[str, str]]) -> str:
    """Return ``torch:lmdb (cold, warm), dali:jpeg (warm)`` of pairs (case, cache state)."""
    return ", ".join(f"{name} ({', '.join(caches)})" for name, caches in grouped(cases).items())


def grouped_advice(lines: Sequence[Finding]) -> list[tuple[str, str]]:
    """Return (who, text) of every different advice: symptom, remedy, the gain where it is known.

    Those with the same remedy follow each other, and the first says it.
    """
    found = []
    for remedy, same in grouped((line.remedy, line) for line in lines).items():
        told = grouped(((line.symptom, _expected(line)), (line.case, line.cache)) for line in same)
        for (symptom, expected), cases in told.items():
            found.append((who(cases), f"{symptom}{f': {remedy}' if remedy else ''}{expected}"))
            remedy = remedy and "the same"
    return found


def _expected(line: Finding) -> str:
    return f"; expected gain {gain(line.gain)}" if line.gain else ""


def gain(found: Interval | None) -> str:
    """Return ``1.8 x (1.6 to 2.1)``, how many times faster training is expected to be."""
    if found is None:
        return "not known"
    spread = limits(found, "{:.2f}".format)
    return f"{found.value:.2f} x ({spread or 'too few repeats for limits'})"


def evidence(found: Finding) -> str:
    """Return the figures that a finding rests on."""
    figures = (
        f"{name} {number(value) if isinstance(value, (int, float)) else value}"
        for name, value in found.evidence.items()
    )
    return ", ".join(figures)


def finding(found: Finding) -> dict[str, Any]:
    """Return a finding as JSON types, its text with it."""
    return {**to_json(found), "text": found.text}


#: Attempts a trial from which on a reader should know of them.
OFTEN = 1.1


def validity(suite: SuiteResult) -> str:
    """Return one line: how many trials count, and why others do not."""
    v = suite.validity
    parts = [f"{v.statuses[VALID]} of {v.planned} trials VALID"]
    parts += [f"{n} {status}" for status, n in v.statuses.items() if n and status != VALID]
    if v.attempts and v.attempts > OFTEN * v.run:
        parts.append(f"{v.attempts} attempts")
    if v.planned > v.run:
        parts.append(f"{v.planned - v.run} not run: `iobench run --resume`")
    checks = suite.checks
    for name, check in (("samples", checks.same_samples), ("bytes", checks.same_bytes)):
        if check.ok is False:
            parts.append(f"the {name} were NOT the same everywhere: {check.reason}")
    line, time = ", ".join(parts), suite.time
    if not time.loops_s:
        return line
    share = percent(time.loops_s / time.suite_s)
    return f"{line}; {share} of {duration(time.suite_s)} in measured loops"


def reasons(suite: SuiteResult, most: int) -> list[str]:
    """Return a line for each kind of reason why trials do not count, the most frequent first.

    Reasons of a kind differ in numbers alone; the first of them is shown.
    """
    counts: Counter[str] = Counter()
    shown: dict[str, str] = {}
    for reason, count in suite.validity.reasons.items():
        kind = re.sub(r"\d+", "0", reason)
        counts[kind] += count
        shown.setdefault(kind, reason)
    lines = [f"{count} x {shown[kind]}" for kind, count in counts.most_common()]
    if more := len(lines[most:]):
        lines[most - 1] += f"; {more} more kinds: trials.csv"
    return lines[:most]


def incomplete(suite: SuiteResult) -> str:
    """Return what of the plan has no result yet; "" of a complete suite."""
    if suite.complete:
        return ""
    v = suite.validity
    left = v.planned - v.statuses[VALID] - v.statuses[EXPLORATORY]
    if left:
        return f"incomplete: {left} of {v.planned} planned trials have no usable record"
    return "incomplete: the comparisons have not begun"


def sameness(suite: SuiteResult) -> str:
    """Return which trials saw the same samples and which cases the same bytes; "" if not known."""
    samples, read = suite.checks.same_samples, suite.checks.same_bytes
    lines = []
    if samples.ok:
        equal = "" if samples.groups == 1 else " of equal size and seed"
        lines.append(f"All usable trials{equal} that read samples saw the same ones.")
    if read.ok and read.compared > read.groups:
        lines.append(f"The digests of {read.compared} cases agree on the bytes of each content.")
    return " ".join(lines)


def data(suite: SuiteResult) -> str:
    """Return one line on the dataset."""
    d = suite.dataset
    size = f" of {d.mean_bytes / 1024:,.0f} KiB" if d.mean_bytes else ""
    return f"{d.name}: {d.samples:,} samples{size}"


def files(suite: SuiteResult) -> list[TableLine]:
    """Return what became of the files of a user's tree; none for a synthetic dataset."""
    return accounting.table(suite.dataset.files) if suite.dataset.files else []


def files_line(suite: SuiteResult) -> str:
    """Return the same as one line of counts, "" for a synthetic dataset."""
    d = suite.dataset
    return accounting.line(d.files, d.source, d.root) if d.files else ""
