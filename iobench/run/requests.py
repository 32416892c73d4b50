"""What a mount gives: fio reads the dataset's own files at random, by request size and depth.

A *point* is one request size and one depth (readers, each with one request in flight).  Requests
are aligned to their size and drawn without repetition inside a point; before every point the files
are evicted, and proven to be.  The kernel's read-ahead is off, so that the mount sees the requests
as they are.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from iobench.core.cases import Extent
from iobench.core.errors import CacheStateError, TrialFailed
from iobench.host.agent import FioResult, NodeAgent
from iobench.run import ceiling
from iobench.run.cache_state import COLD_RESIDENT_MAX

KIB = 1024
SIZES = tuple(4 * KIB * 4**i for i in range(6))  # 4 KiB to 4 MiB
DEPTHS = (1, 4, 16)
#: How long one point reads, unless all has been read before; those of the largest size, which give
#: the bandwidth, longer: what a throttle or a server lets through at first counts less.
POINT_MS, LARGEST_MS = 700, 2000
#: The largest files, so many: each is held open.
MOST_FILES = 512
#: Requests of one point: fio reads the whole list before it begins.
MOST_REQUESTS = 50_000


@dataclasses.dataclass(frozen=True)
class Requests:
    """fio's answers, one a point: size, depth, requests, seconds.

    ``opened``: how often each file was, to evict, to prove and to read it.  ``invalid``: as a
    ceiling's.
    """

    points: tuple[dict[str, Any], ...]
    io_bytes: int
    storage_bytes: int
    runtime_s: float
    version: str
    files: int
    opened: int
    invalid: str = ""


def grid(files: Sequence[tuple[Path, int]]) -> list[tuple[int, int]]:
    """Return (size, depth) of the points that these files can serve.

    All depths at the smallest and the largest size, the least and the most at the others.  Requests
    of a size cover half of the bytes, and every reader of a point has two, at least.
    """
    total = sum(n for _, n in files)
    able = {
        size: [depth for depth in DEPTHS if depth == 1 or slots >= 2 * depth]
        for size in SIZES
        if (slots := sum(n // size for _, n in files)) * size >= total / 2 > 0
    }
    ends = {*list(able)[:1], *list(able)[-1:]}
    return [
        (size, depth)
        for size, depths in able.items()
        for depth in (depths if size in ends else dict.fromkeys((depths[0], depths[-1])))
    ]


def chosen(extents: Iterable[Sequence[Extent]]) -> list[tuple[Path, int]]:
    """Return the files that hold the samples, the largest first, with their sizes."""
    paths = {extent.path for sample in extents for extent in sample}
    sized = [(Path(path), Path(path).stat().st_size) for path in paths]
    return sorted(sized, key=lambda item: (-item[1], item[0]))[:MOST_FILES]


def plan(
    files: Sequence[tuple[Path, int]], size: int, depth: int, draw: random.Random
) -> ceiling.CeilingPlan:
    """Return what each of ``depth`` readers asks for, in random order."""
    slots = [(path, i) for path, n in files for i in range(n // size)]
    drawn = draw.sample(slots, min(len(slots), MOST_REQUESTS))
    samples = [[Extent(str(path), i * size, size)] for path, i in drawn]
    return ceiling.plan(samples, jobs=depth, batch=1)


def run(files: Sequence[tuple[Path, int]], fio: ceiling.Fio, *, seed: int) -> Requests:
    """Measure every point, in an order of its own.

    Raises TrialFailed for files that are too small, CacheStateError for pages that stay resident,
    and what fio raises.
    """
    points = grid(files)
    if not points:
        raise TrialFailed(f"no file of the samples has {SIZES[0]} bytes: no requests to measure")
    draw, largest = random.Random(seed), max(size for size, _ in points)
    draw.shuffle(points)
    done: dict[tuple[int, int], FioResult] = {}
    for size, depth in points:
        wanted = plan(files, size, depth, draw)
        _evict([path for path, _ in files], fio.agent)
        most_ms = LARGEST_MS if size == largest else POINT_MS
        done[size, depth] = fio.replay(wanted, read_ahead=False, most_ms=most_ms)
    odd = [f"{d.io_bytes} bytes in {d.ios} requests of {size}" for (size, _), d in done.items()
           if not d.runtime_s or d.io_bytes != d.ios * size]  # fmt: skip
    return Requests(
        points=tuple(
            {"size": size, "depth": depth, "requests": d.ios, "seconds": d.runtime_s}
            for (size, depth), d in sorted(done.items())
        ),
        io_bytes=sum(d.io_bytes for d in done.values()),
        storage_bytes=sum(d.storage_bytes for d in done.values()),
        runtime_s=sum(d.runtime_s for d in done.values()),
        files=len(files),
        opened=3 * len(points),
        version=next(iter(done.values())).version,
        invalid=f"fio read {odd[0]}" if odd else "",
    )


def _evict(paths: Sequence[Path], agent: NodeAgent) -> None:
    agent.evict(paths)
    left = agent.residency(paths).fraction
    if left is not None and left > COLD_RESIDENT_MAX:
        raise CacheStateError(f"not cold: {left:.2%} of the pages stayed resident after eviction")
