"""What the filesystem can give: fio reads a format's byte ranges in the pipeline's own order.

One fio job stands for one reader (a worker process of the loader); job w gets the batches w,
w + readers, ... as a loader shards them, and replays them from a version 2 I/O log: the same
files, offsets, sizes and order, a file of one sample opened and closed around its read, a shard
kept open, no ``fadvise`` that the reader does not give.

Formats that are read through mmap are replayed by read() too, because fio 3.33 can do neither
an I/O log nor an ``offset`` with its mmap engine (it maps 0 bytes, or the file's head).  With
read-ahead off (``random``) a mapping faults page by page, so the log holds one read a page: the
device sees the same requests.  With the default read-ahead a fault may bring in more than a
sample, so there the pipeline can be faster than this ceiling.

The page cache is the caller's: evict and prove before :func:`run`, because time that fio itself
spends on invalidating counts in its bandwidth (axboe/fio issue 1422).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from iobench import fio
from iobench.errors import TrialFailed
from iobench.model import Extent
from iobench.residency_calls import PAGE_BYTES

#: Rates from shorter runs are rough: fio's clock ticks in milliseconds, and start-up bursts count.
ENOUGH_S = 2.0
#: A ceiling that read another amount than wanted by more than this share is INVALID.
BYTES_TOLERANCE = 0.01
#: fio reads log lines with sscanf("%256s"): longer paths and those with blanks go through a link.
LOG_PATH_MAX = 250

Extents = Sequence[Extent]


@dataclasses.dataclass(frozen=True)
class CeilingPlan:
    """What each reader fetches, in order.  ``hint`` is fio's fadvise_hint: ``0`` or ``random``."""

    readers: tuple[tuple[Extent, ...], ...]
    samples: int
    hint: str = "0"
    repeat: int = 1
    note: str = ""

    @property
    def wanted_bytes(self) -> int:
        """Bytes of all reads."""
        return self.repeat * sum(extent.length for reader in self.readers for extent in reader)


@dataclasses.dataclass(frozen=True)
class Ceiling:
    """fio's answer.  ``invalid`` says why it cannot be used; ``note`` what to keep in mind."""

    bytes_per_s: float
    samples_per_s: float
    io_bytes: int
    wanted_bytes: int
    storage_bytes: int
    runtime_s: float
    iops: float
    readers: int
    samples: int
    version: str
    argv: tuple[str, ...]
    note: str = ""
    invalid: str = ""


def plan(
    samples: Sequence[Extents],
    *,
    readers: int,
    batch: int,
    mapped: bool = False,
    hint: str = "0",
    repeat: int = 1,
) -> CeilingPlan:
    """Share out ``samples`` (the extents of each, in the pipeline's order) among readers.

    ``readers``: worker processes (0, no workers, is one reader).  ``mapped``: the format is read
    through mmap.  ``hint``: ``random`` where the reader turns read-ahead off.  ``repeat``: replay
    the pattern so often; only for warm runs, a cold one reads nothing twice.
    """
    count = max(readers, 1)
    shares: list[list[Extent]] = [[] for _ in range(count)]
    for number, extents in enumerate(samples):
        shares[number // batch % count].extend(extents)
    note = ""
    if mapped and hint == "random":
        shares = [[page for extent in share for page in _pages(extent)] for share in shares]
        note = "mmap without read-ahead, replayed as one read() a page"
    elif mapped:
        note = "mmap replayed by read(): its own read-ahead may beat this ceiling"
    kept = tuple(tuple(share) for share in shares if share)
    return CeilingPlan(kept, len(samples) * repeat, hint=hint, repeat=repeat, note=note)


def access(format_name: str, options: Any = None) -> dict[str, Any]:
    """Return ``mapped`` and ``hint`` of :func:`plan` for a format and its options.

    LMDB is a memory map, with read-ahead unless its option ``readahead`` is false; all other
    formats call read() and give no hint.
    """
    if format_name != "lmdb":
        return {"mapped": False, "hint": "0"}
    ahead = (options or {}).get("readahead", True)
    return {"mapped": True, "hint": "0" if ahead else "random"}


def run(
    plan: CeilingPlan, folder: Path, *, time_limit_s: float = 300.0, enter: Sequence[str] = ()
) -> Ceiling:
    """Replay a plan with fio.  ``folder`` (made when absent) keeps logs, job file and JSON.

    Raises BackendUnavailable without fio and TrialFailed when fio fails or overruns.
    """
    if not plan.wanted_bytes:
        raise TrialFailed("nothing to read: the format says that its samples occupy no bytes")
    folder.mkdir(parents=True, exist_ok=True)
    jobs = []
    for number, reader in enumerate(plan.readers):
        log = folder / f"reader{number}.log"
        log.write_text("".join(_log_lines(reader, plan.repeat, folder / "links")))
        jobs.append({"read_iolog": str(log)})
    options = {
        "ioengine": "psync",
        "invalidate": "0",
        "fadvise_hint": plan.hint,
        "replay_no_stall": "1",
        "allow_file_create": "0",
    }
    done = fio.run(folder, fio.job_file(options, jobs), time_limit_s=time_limit_s, enter=enter)
    short = done.runtime_s < ENOUGH_S
    notes = [plan.note, f"a short run: {done.runtime_s:.2f} s" if short else ""]
    return Ceiling(
        bytes_per_s=done.bytes_per_s,
        samples_per_s=plan.samples / done.runtime_s if done.runtime_s else 0.0,
        io_bytes=done.io_bytes,
        wanted_bytes=plan.wanted_bytes,
        storage_bytes=done.storage_bytes,
        runtime_s=done.runtime_s,
        iops=done.ios / done.runtime_s if done.runtime_s else 0.0,
        readers=len(plan.readers),
        samples=plan.samples,
        version=done.version,
        argv=done.argv,
        note="; ".join(filter(None, notes)),
        invalid=_judge(done, plan),
    )


def _judge(done: fio.FioResult, plan: CeilingPlan) -> str:
    wanted = plan.wanted_bytes
    if abs(done.io_bytes - wanted) > BYTES_TOLERANCE * wanted:
        return f"fio read {done.io_bytes} bytes where {wanted} were wanted"
    if not done.runtime_s:
        return "fio was done in under a millisecond: too few bytes for a rate"
    return ""


def _pages(extent: Extent) -> Iterator[Extent]:
    """Cut an extent at page boundaries, widened to whole pages at its ends as a fault is."""
    first, end = extent.offset // PAGE_BYTES, extent.offset + extent.length
    for page in range(first, -(-end // PAGE_BYTES)):
        start = max(page * PAGE_BYTES, extent.offset)
        yield Extent(extent.path, start, min((page + 1) * PAGE_BYTES, end) - start)


def _log_lines(reader: Extents, repeat: int, links: Path) -> Iterator[str]:
    """Yield an I/O log (fio HOWTO, "Trace file format v2")."""
    uses = collections.Counter(extent.path for extent in reader)
    names = {path: _log_path(path, links) for path in uses}
    yield "fio version 2 iolog\n"
    for name in names.values():
        yield f"{name} add\n"
    held: set[str] = set()
    for _ in range(repeat):
        for path, offset, length in reader:
            name = names[path]
            once = uses[path] == 1
            if once or path not in held:
                yield f"{name} open\n"
            yield f"{name} read {offset} {length}\n"
            if once:
                yield f"{name} close\n"
            else:
                held.add(path)
    for path in held:
        yield f"{names[path]} close\n"


def _log_path(path: str, links: Path) -> str:
    """Return a name that fio's log can hold: the path, or a symbolic link to it."""
    if len(path) <= LOG_PATH_MAX and not any(c.isspace() for c in path):
        return path
    links.mkdir(exist_ok=True)
    link = links / f"{len(list(links.iterdir()))}"
    link.symlink_to(path)
    return str(link)
