"""What a sample costs each arm of a contrast: CPU time, bytes and page faults of its own trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from iobench.analysis import page_ins, ranks
from iobench.analysis.contrast_results import SampleCost
from iobench.core.records import IoCounters, Record


def per_sample(records: Sequence[Record]) -> SampleCost:
    """Return medians over trials of each count a sample; None where no trial could count it."""
    return SampleCost(
        cpu_s=_own(records, lambda io: io.cpu_s),
        system_s=_own(records, lambda io: io.cpu_sys_s),
        read_bytes=_own(records, lambda io: io.rchar),
        storage_bytes=_median(records, page_ins.data_bytes),
        major_faults=_own(records, lambda io: io.major_faults),
    )


def _own(records: Sequence[Record], count: Callable[[IoCounters], float]) -> float | None:
    return _median(records, lambda record: sum(count(rank.io) for rank in record.ranks))


def _median(records: Sequence[Record], count: Callable[[Record], float | None]) -> float | None:
    shares = []
    for record in records:
        samples = ranks.samples(record)
        counted = count(record)
        if samples and counted is not None:
            shares.append(counted / samples)
    return median(shares) if shares else None
