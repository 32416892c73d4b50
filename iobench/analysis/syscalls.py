"""Traced trials -> how often each arm of a difference calls open(), read() and the others.

docs/method.md, "System calls".
"""

from __future__ import annotations

from collections.abc import Mapping

from iobench.analysis.attribution import FOUND
from iobench.analysis.contrast_results import CallsResult
from iobench.analysis.evidence import Evidence
from iobench.core.cases import Contrast
from iobench.core.records import Record

#: What people call a call -> its names in the kernel.
NAMES: Mapping[str, tuple[str, ...]] = {
    "open": ("open", "openat", "openat2", "creat"),
    "read": ("read", "pread64", "readv", "preadv", "preadv2"),
    "stat": ("stat", "fstat", "lstat", "newfstatat", "fstatat64", "statx"),
    "lseek": ("lseek", "_llseek"),
    "mmap": ("mmap", "mmap2"),
    "fadvise": ("fadvise64", "fadvise64_64", "posix_fadvise"),
    "write": ("write", "pwrite64", "writev", "pwritev", "pwritev2"),
    "wait": (
        "futex", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2",
        "clock_nanosleep", "nanosleep", "sched_yield", "restart_syscall", "wait4", "waitid",
    ),
}  # fmt: skip
_PLAIN = {kernel: name for name, group in NAMES.items() for kernel in group}
#: How often a process waits is the scheduler's doing, and differs from run to run.
IDLE = ("wait",)
#: Counts a sample differ when they are this far apart, and by this share of the larger one.
LEAST, SHARE = 0.1, 0.1


def counted(evidence: Evidence, contrast: Contrast, verdict: str) -> CallsResult | None:
    """Return the calls a sample of both arms of a FASTER or SLOWER; None for another verdict."""
    if verdict not in FOUND:
        return None
    base: Mapping[str, float] = {}
    arm, reason = _side(evidence, contrast.arm)
    if not reason:
        base, reason = _side(evidence, contrast.base)
    return CallsResult(arm, base, () if reason else _differing(arm, base), reason)


def _side(evidence: Evidence, label: str) -> tuple[Mapping[str, float], str]:
    """Return an arm's calls a sample; {} and the reason where they were not counted."""
    record = _record(evidence, label)
    if record is None:
        return {}, "no traced trial: the budget was spent, or it failed"
    reason = record.notes["calls"].get("reason", "")
    return ({}, reason) if reason else (per_sample(record), "")


def per_sample(record: Record) -> dict[str, float]:
    """Return call -> how often it was made a sample, those of :data:`NAMES` together, by name."""
    noted = record.notes["calls"]
    found: dict[str, float] = {}
    for kernel, count in noted["counts"].items():
        name = _PLAIN.get(kernel, kernel)
        found[name] = found.get(name, 0.0) + count / noted["samples"]
    return {name: round(found[name], 4) for name in sorted(found)}


def _record(evidence: Evidence, label: str) -> Record | None:
    for trial in evidence.plan.trials:
        if (trial.stage, trial.case.label) == ("calls", label):
            record = evidence.last.get(trial.id)
            return record if record is not None and "calls" in record.notes else None
    return None


def _differing(arm: Mapping[str, float], base: Mapping[str, float]) -> list[str]:
    large = {}
    for name in {*arm, *base} - {*IDLE}:
        low, high = sorted((arm.get(name, 0.0), base.get(name, 0.0)))
        if high - low >= max(LEAST, SHARE * high):
            large[name] = high - low
    return sorted(large, key=lambda name: (-large[name], name))
