"""What a sample costs each arm of a contrast: CPU time, bytes and page faults of its own trials.

Counted by the kernel for every worker in the very trials that are compared, so that a difference is
explained by what the arms did, not by what is usual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from iobench.model import Record

#: Name -> what one trial's ranks (or the mount) counted over the whole loop.
COUNTS: Mapping[str, Callable[[Record], float | None]] = {
    "cpu_s": lambda r: sum(rank.io.cpu_user_s + rank.io.cpu_sys_s for rank in r.ranks),
    "system_s": lambda r: sum(rank.io.cpu_sys_s for rank in r.ranks),
    "read_bytes": lambda r: sum(rank.io.rchar for rank in r.ranks),
    "storage_bytes": lambda r: r.cache.bytes_storage,
    "major_faults": lambda r: sum(rank.io.major_faults for rank in r.ranks),
}


def per_sample(records: Sequence[Record]) -> dict[str, float | None]:
    """Return name -> the median over trials of that count a sample; None where none could count.

    ``cpu_s`` is user and system time of the workers and what they started, ``system_s`` the share
    in the kernel; ``read_bytes`` went through read() and its kin (a memory map's do not);
    ``storage_bytes`` crossed the mount.
    """
    return {name: _median(records, count) for name, count in COUNTS.items()}


def _median(records: Sequence[Record], count: Callable[[Record], float | None]) -> float | None:
    shares = []
    for record in records:
        samples = sum(sum(rank.steps.samples) for rank in record.ranks)
        counted = count(record)
        if samples and counted is not None:
            shares.append(counted / samples)
    return median(shares) if shares else None
