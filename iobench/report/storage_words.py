"""What a mount gives, in words: its limits, many files, what stays in memory."""

from __future__ import annotations

from collections.abc import Iterable

from iobench.analysis.case_results import CaseResult
from iobench.analysis.storage_results import MetadataResult
from iobench.core.cases import STEADY
from iobench.equations.stats import Interval
from iobench.report.numbers import milliseconds, number


def storage(case: CaseResult) -> str:
    """Return what the mount gives and which of it bounds cold reading; "" where not measured."""
    found = case.storage
    if found is None:
        return ""
    bandwidth = "" if found.bandwidth_reached else "at least "
    iops = "" if found.iops_reached else "at least "
    figures = (
        f"the mount gives {bandwidth}{number(found.bandwidth / 1e6)} MB/s and "
        f"{iops}{number(found.iops)} requests/s; one of {number(found.request_bytes / 1024)} KiB "
        f"takes {milliseconds(found.latency_s)} ms"
    )
    return f"{figures}; {found.words}" if found.words else figures


def steady(case: CaseResult) -> str:
    """Return what epochs after the first find in memory, and their rates; "" where not measured."""
    if case.steady is None:
        return ""
    rates = [
        f"{stage} {number(found.value)}/s"
        for stage in ("read", "load", "train")
        if (found := case.rate(stage, STEADY))
    ]
    return f"steady: {', '.join(rates)}; {case.steady.words}"


def servers_cache(case: CaseResult) -> str:
    """Return what the servers keep of what is read, in one line; "" where not measured."""
    return case.servers_cache.words if case.servers_cache else ""


def many_files(cases: Iterable[CaseResult]) -> list[CaseResult]:
    """Return one case of each mount on which the cost of files was measured, or of its files."""
    found: dict[str, CaseResult] = {}
    measured = [case for case in cases if case.metadata]
    for case in sorted(measured, key=lambda c: not (c.metadata and c.metadata.whole_files)):
        assert case.metadata is not None
        known = [c.metadata for c in found.values() if c.metadata]
        alike = [m for m in known if m.rates == case.metadata.rates]
        if not any(case.metadata.whole_files in ([], m.whole_files) for m in alike):
            found[case.case] = case
    return [case for case in measured if case.case in found]


def metadata(case: CaseResult) -> str:
    """Return what files cost on the case's mount, in one line; "" where not measured."""
    found = case.metadata
    if found is None:
        return ""
    lines = [found.words] if found.words else []
    if found.rates:
        last = found.rates[-1]
        each = ", ".join(f"{name} {number(rate.value)}" for name, rate in last.per_s.items())
        lines.append(
            f"operations/s with {last.files:,} files in a directory, by {last.processes} "
            f"processes: {each}"
        )
        lines.append(metadata_cache(found))
    if found.left_out:
        lines.append(f"not measured: {found.left_out}")
    return "; ".join(lines)


def within_ten(entry: Interval) -> bool:
    """Return whether an interval is narrower than a factor of ten; two repeats seldom are."""
    return entry.limited and 0 < entry.high <= 10 * entry.low


def metadata_cache(found: MetadataResult) -> str:
    """Return what stat and open could find in this client's memory."""
    if found.dropped:
        return "before stat and open, this client's names and attributes were dropped"
    return "stat and open of files that this client created: its memory may answer"
