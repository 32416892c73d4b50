"""Put files into a page-cache state and prove it: evict, warm, count resident pages.

Eviction is per file (``posix_fadvise(DONTNEED)``), needs no root and hits no neighbour; what the
kernel does not report truthfully is called unproven (:mod:`iobench.host.residency`).  All of it
happens on the host side, outside containers and outside the timed region.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import random
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import numpy as np

from iobench.core.cases import Extent
from iobench.core.errors import CacheStateError
from iobench.host import cgroups, probes
from iobench.host import residency as residency_calls
from iobench.host.residency import PAGE_BYTES, page_spans

#: Bytes a read() call asks for when warming: a fixed buffer, because a fresh one a call is slower.
BUFFER_BYTES = 1 << 18
#: A file larger than this is warmed by several threads.
RANGE_BYTES = 64 << 20
#: How far a cached fraction may be from what was asked for.
TOLERANCE = 0.02
#: (offset, length) in bytes, or (first page, past the last).
Spans = List[Tuple[int, int]]
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


@dataclasses.dataclass(frozen=True)
class Residency:
    """How much of some files is in the page cache.

    ``unproven``: the reason why no number can be trusted; then ``fraction`` is None.
    ``nbytes``: bytes of the files in resident pages; the last page of a file may hold fewer.
    """

    pages: int = 0
    resident: int = 0
    method: str = ""
    unproven: str = ""
    nbytes: int = 0

    @property
    def fraction(self) -> Optional[float]:
        """Resident pages / pages, 0..1; 1.0 for no pages at all; None when unproven."""
        if self.unproven:
            return None
        return self.resident / self.pages if self.pages else 1.0


def evict(files: Iterable[Path]) -> None:
    """Write back what is dirty and drop every page of ``files`` from this machine's page cache.

    Pages that another process maps stay, so :func:`residency` must prove the result.
    Raises CacheStateError for a file that cannot be opened.
    """
    synced = False
    for path in files:
        with _opened(path) as fd:
            if residency_calls.stacked(fd):
                if not synced:  # overlayfs syncs no lower file through its own descriptors
                    os.sync()
                    synced = True
            elif residency_calls.maybe_dirty(fd):
                with contextlib.suppress(OSError):  # squashfs: EINVAL; residency proves the result
                    os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def warm(files: Iterable[Path], *, threads: int = 4) -> None:
    """Read every byte of ``files``.  Raises CacheStateError for a file that cannot be read."""
    ranges = _ranges(files)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        list(pool.map(_read, [ranges[i::threads] for i in range(threads)]))


def residency(files: Iterable[Path]) -> Residency:
    """Count the resident pages of whole files.  Raises CacheStateError if one is not readable."""
    return _residency((str(path), None) for path in files)


def extent_residency(extents: Iterable[Extent]) -> Residency:
    """Count the resident pages that hold ``extents``; a page that two of them share counts once."""
    return _residency((path, page_spans(spans)) for path, spans in _by_file(extents).items())


def set_fraction(
    samples: Sequence[Sequence[Extent]], fraction: float, seed: int, files: Iterable[Path] = ()
) -> Residency:
    """Cache a seeded random subset of samples that holds ``fraction`` of all samples' pages.

    Evicts ``files`` and every file the samples lie in, then reads the chosen samples with
    read-ahead off, so that only their pages come in.  ``samples``: the extents of each sample.
    Returns the residency of all samples' pages.

    Raises CacheStateError when that is further than :data:`TOLERANCE` (or one sample) from
    ``fraction``, or cannot be proven.
    """
    if not 0.0 <= fraction <= 1.0:
        raise CacheStateError(f"cached fraction {fraction} is not within 0..1; correct the spec")
    every = [extent for sample in samples for extent in sample]
    evict({*map(Path, files), *(Path(extent.path) for extent in every)})
    chosen = _by_file(_choose(samples, every, fraction, seed))
    # random: no read-ahead, so that no other pages come in
    _read(chosen.items(), os.POSIX_FADV_RANDOM)
    reached = extent_residency(every)
    if reached.fraction is None:
        raise CacheStateError(f"cached fraction {fraction} cannot be proven: {reached.unproven}")
    largest = max(
        (sum(e.length // PAGE_BYTES + 2 for e in sample) for sample in samples), default=0
    )
    slack = max(TOLERANCE, largest / reached.pages if reached.pages else 1.0)
    if abs(reached.fraction - fraction) > slack:
        raise CacheStateError(
            f"asked for {fraction:.3f} of the data cached, reached {reached.fraction:.3f} "
            f"(tolerance {slack:.3f}): is something else reading {every[0].path}?"
        )
    return reached


def _choose(
    samples: Sequence[Sequence[Extent]], every: Sequence[Extent], fraction: float, seed: int
) -> List[Extent]:
    """Return the extents of random samples that together touch ``fraction`` of all pages.

    Pages, not bytes: in a shard a page at a sample's edge comes in for its neighbour too.
    """
    spans = {path: page_spans(parts) for path, parts in _by_file(every).items()}
    absent = {path: np.ones(parts[-1][1] if parts else 0, bool) for path, parts in spans.items()}
    missing = fraction * sum(stop - start for parts in spans.values() for start, stop in parts)
    order = list(range(len(samples)))
    random.Random(seed).shuffle(order)
    chosen: List[Extent] = []
    for index in order:
        touched = [
            absent[extent.path][start:stop]
            for extent in samples[index]
            for start, stop in page_spans([(extent.offset, extent.length)])
        ]
        new = sum(int(pages.sum()) for pages in touched)
        if new / 2 <= missing:
            missing -= new
            chosen.extend(samples[index])
            for pages in touched:
                pages[:] = False
    return chosen


def drop_caches(*, allowed: bool, names: bool = False) -> None:
    """Drop the whole machine's page cache, which slows down everybody; raises CacheStateError.

    ``names``: what it knows of names and attributes of files (dentries, inodes) in its place.
    """
    if not allowed:
        raise CacheStateError("drop_caches hits every user of this machine; allow it explicitly")
    os.sync()
    try:
        DROP_CACHES.write_text("2\n" if names else "1\n")
    except OSError as error:
        raise CacheStateError(
            f"cannot write {DROP_CACHES} ({error.strerror}): be root, or use data-cold"
        ) from error


def effective_memory_bytes() -> int:
    """Return min(MemTotal, cgroup memory limits): what data plus processes can occupy."""
    return min([_meminfo("MemTotal"), *cgroups.memory_limits_bytes()])


def check_warmable(nbytes: int, files: Sequence[Path] = ()) -> None:
    """Raise CacheStateError, with the reason, when ``nbytes`` of data cannot be warm here.

    ``files``: those data; what is locked of them already, for another arm, needs no more memory.
    """
    memory = effective_memory_bytes()
    if nbytes > memory:
        raise CacheStateError(
            f"{_gib(nbytes)} of data cannot be warm in {_gib(memory)} of effective memory "
            "(MemTotal or the cgroup's limit): use fewer samples, or measure 'steady'"
        )
    available = _meminfo("MemAvailable")
    if nbytes > available and files:  # what is locked does not count as available
        available += min(residency(files).nbytes, _meminfo("Mlocked"))
    if nbytes > available:
        raise CacheStateError(
            f"{_gib(nbytes)} of data cannot be warm: other processes leave {_gib(available)} of "
            f"{_gib(memory)}; free memory or use fewer samples"
        )


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB"


def _meminfo(name: str) -> int:
    found = probes.fields(probes.read("/proc/meminfo")).get(name)
    if found is None:
        raise CacheStateError(f"/proc/meminfo has no {name}; iobench needs Linux 3.14 or later")
    return int(found.split()[0]) * 1024


@contextlib.contextmanager
def _opened(path: object) -> Iterator[int]:
    try:
        fd = os.open(str(path), os.O_RDONLY)
    except OSError as error:
        raise CacheStateError(
            f"cannot open {path} ({error.strerror}): the dataset changed or is not readable; "
            "run `iobench data verify`"
        ) from error
    try:
        yield fd
    finally:
        os.close(fd)


def _ranges(files: Iterable[Path]) -> List[Tuple[Path, Spans]]:
    """Cut files into (path, its one (offset, length) of at most RANGE_BYTES)."""
    ranges: List[Tuple[Path, Spans]] = []
    for path in files:
        try:
            size = os.stat(path).st_size
        except OSError as error:
            raise CacheStateError(f"cannot read {path} ({error.strerror})") from error
        ranges += [
            (path, [(at, min(RANGE_BYTES, size - at))]) for at in range(0, size, RANGE_BYTES)
        ]
    return ranges


def _read(parts: Iterable[Tuple[object, Spans]], advice: int = os.POSIX_FADV_NORMAL) -> None:
    """Read (path, spans of it) into one buffer that is thrown away."""
    buffer = memoryview(bytearray(BUFFER_BYTES))
    for path, spans in parts:
        with _opened(path) as fd:
            os.posix_fadvise(fd, 0, 0, advice)
            for offset, length in spans:
                _read_span(fd, path, buffer, offset, length)


def _read_span(fd: int, path: object, buffer: memoryview, offset: int, length: int) -> None:
    end = offset + length
    while offset < end:
        try:
            count = os.preadv(fd, [buffer[: min(len(buffer), end - offset)]], offset)
        except OSError as error:
            raise CacheStateError(
                f"cannot read {path} ({error.strerror}): run `iobench data verify`, and see the "
                "kernel's log (dmesg)"
            ) from error
        if count == 0:
            return
        offset += count


def _by_file(extents: Iterable[Extent]) -> Dict[str, Spans]:
    files: Dict[str, Spans] = {}
    for path, offset, length in extents:
        files.setdefault(path, []).append((offset, length))
    return files


def _residency(parts: Iterator[Tuple[str, Optional[Spans]]]) -> Residency:
    """Sum over (path, page spans of it; None: the whole file)."""
    pages = resident = nbytes = 0
    methods: Set[str] = set()
    for path, spans in parts:
        try:
            with _opened(path) as fd:
                status = os.fstat(fd)
                whole = -(-status.st_size // PAGE_BYTES)
                if spans is None:
                    spans = [(0, whole)] if whole else []
                if not spans:
                    continue
                if not residency_calls.truthful(path, status):
                    return Residency(
                        unproven=f"{path} belongs to another user: the kernel hides what is cached "
                        "of it; copy the data, or own it"
                    )
                if cache := residency_calls.own_cache(fd):
                    return Residency(unproven=f"{path}: {cache} caches outside the page cache")
                method, count = residency_calls.count(fd, spans)
        except OSError as error:
            return Residency(unproven=f"{path}: {error.strerror}")
        methods.add(method)
        pages += sum(stop - start for start, stop in spans)
        resident += count
        nbytes += min(count * PAGE_BYTES, status.st_size)
    return Residency(pages, resident, "+".join(sorted(methods)), nbytes=nbytes)
