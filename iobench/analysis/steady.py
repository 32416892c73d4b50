"""Epochs after the first, of data that need not fit into memory: docs/method.md, "Steady"."""

from __future__ import annotations

from statistics import fmean

from iobench.analysis import page_ins
from iobench.analysis.evidence import Evidence
from iobench.analysis.storage_results import SteadyResult
from iobench.core import stages
from iobench.core.cases import STEADY, STEADY_EPOCHS, Case
from iobench.core.records import Record
from iobench.equations import stalls, stats

#: Bytes that crossed more often than needed, beyond the ends of pages.
AMPLIFIED = 0.05


def steady_of(found: Evidence, case: Case) -> SteadyResult | None:
    """Return what a case's later epochs found in memory; None without a trial that counted it."""
    records = [r for stage in stages.contrasted() for r in found.of(case, stage, STEADY)]
    ratios = [ratio for r in records if (ratio := hit_ratio(r)) is not None]
    if not ratios:
        return None
    held = [r.cache.resident_after for r in records if r.cache.resident_after is not None]
    cached = fmean(held) if held else None
    lru = None if cached is None else stalls.lru_hit_ratio(cached)
    hits = stats.t_interval(ratios)
    words = f"after the first epoch, {hits.value:.0%} of the bytes needed came from memory"
    if hits.value < -AMPLIFIED:
        words = (
            f"after the first epoch, {1 - hits.value:.1f} x the bytes needed crossed the mount: "
            "read-ahead brought in what was evicted before it was used"
        )
    elif cached is not None and lru is not None:
        words += (
            f", which held {cached:.0%} of the data: strict LRU would give {lru:.0%}, without "
            f"eviction {cached:.0%}"
        )
    return SteadyResult(hits, cached, lru, cached, words)


def hit_ratio(record: Record) -> float | None:
    """Return the share of the bytes needed after the first epoch that did not cross the mount.

    The first began cold, so it took each byte from there once.  None for trials of another state,
    and where nothing counted.
    """
    crossed, needed = page_ins.data_bytes(record), record.cache.bytes_needed
    if record.trial.cache != STEADY or crossed is None or not needed:
        return None
    once = needed / STEADY_EPOCHS
    return 1 - (crossed - once) / (needed - once)
