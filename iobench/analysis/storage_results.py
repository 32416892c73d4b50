"""What the analysis finds about a mount, and about the memory before it.

Values; the fields' names are keys of ``analysis.json``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from iobench.equations.stats import Interval


@dataclasses.dataclass(frozen=True)
class StorageResult:
    """What the mount gives a case's own requests, and why not more.

    ``bandwidth`` in bytes/s, ``iops`` in requests/s, ``latency_s`` of one request of the case's
    size ``request_bytes``, alone in flight; ``ridge_bytes``: smaller requests are bound by IOPS.
    ``*_reached`` False: a lower bound.  ``roofs``: samples/s.  ``deeper_samples_per_s``: with
    ``deepest`` requests in flight instead of ``readers``.
    """

    request_bytes: float
    requests_per_sample: float
    readers: int
    bandwidth: float
    bandwidth_reached: bool
    iops: float
    iops_reached: bool
    ridge_bytes: float
    latency_s: float
    roofs: Mapping[str, float]
    binding: str | None
    deepest: int
    deeper_samples_per_s: float
    words: str


@dataclasses.dataclass(frozen=True)
class MetadataRates:
    """Operations a second in a directory of ``files`` by ``processes``: create, stat, open, unlink.

    ``open`` includes the close.
    """

    files: int
    processes: int
    per_s: Mapping[str, Interval]


@dataclasses.dataclass(frozen=True)
class FileTimes:
    """Whole files of the case read from cold by ``processes``: seconds a file of each part."""

    processes: int
    files_per_s: Interval
    bytes_per_s: float
    open_s: Interval
    read_s: Interval
    close_s: Interval

    @property
    def share(self) -> float:
        """Share of a file's time that is not its bytes' (0..1)."""
        around = self.open_s.value + self.close_s.value
        return around / (around + self.read_s.value) if around else 0.0


@dataclasses.dataclass(frozen=True)
class MetadataResult:
    """What many files cost on a mount; intervals over the repeats.

    ``dropped``: stat and open came from a client that had forgotten the names.  ``left_out``: why
    no larger directory was measured.
    """

    rates: Sequence[MetadataRates]
    dropped: bool
    left_out: str
    whole_files: Sequence[FileTimes]
    words: str


@dataclasses.dataclass(frozen=True)
class RereadRates:
    """A working set of ``bytes`` read twice, this client emptied in between: bytes/s."""

    bytes: int
    first_per_s: Interval
    again_per_s: Interval


@dataclasses.dataclass(frozen=True)
class ServersCacheResult:
    """What the servers keep of the files that are read; intervals over the repeats.

    Their cache holds between ``low`` and ``high`` bytes.  ``high`` None: more than the largest set;
    both None: no second pass is faster than its first.
    """

    sets: Sequence[RereadRates]
    low: int | None
    high: int | None
    words: str


@dataclasses.dataclass(frozen=True)
class SteadyResult:
    """Epochs after the first, of data that need not fit into memory; shares are 0..1.

    ``hit_ratio``: of the bytes needed, those that did not cross the mount.  ``cached``: of the
    data's pages, those in memory at the end.  ``lru`` and ``no_evict``: what a cache of that size
    gives under reshuffling.
    """

    hit_ratio: Interval
    cached: float | None
    lru: float | None
    no_evict: float | None
    words: str
