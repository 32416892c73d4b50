"""Caches past this host, which nobody here can look into: what is known of a trial's.

docs/filesystems.md, "Beyond the client".
"""

from __future__ import annotations

from collections import Counter

from iobench.analysis.evidence import Evidence, enters
from iobench.core.records import UNKNOWN, Record


def label(record: Record) -> str:
    """Return what is known of the caches of the servers that a trial read from."""
    return record.cache.beyond


def note(found: Evidence) -> list[str]:
    """Return a note of how many cold trials something is known of; none where nothing is."""
    cold = [r for r in found.last.values() if enters(r) and _read_cold(r)]
    counts = Counter(label(r) for r in cold)
    if not set(counts) - {UNKNOWN}:
        return []
    parts = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    return [f"servers' caches, of {len(cold)} cold trials: {parts}"]


def _read_cold(record: Record) -> bool:
    """Return whether a trial read data cold, and not the software that it starts from."""
    return record.trial.cache == "cold" and "software" not in record.notes
