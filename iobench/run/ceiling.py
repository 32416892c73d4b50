"""What the filesystem can give: fio reads a format's byte ranges in the pipeline's own order.

One fio job stands for one reader (a worker process of the loader); job w gets the batches w,
w + readers, ... as a loader shards them, and replays them from a version 2 I/O log: the same
files, offsets, sizes and order, a file of one sample opened and closed around its read, a shard
kept open, no ``fadvise`` that the reader does not give.

Formats that are read through mmap are replayed by read() too, because fio 3.33 can do neither
an I/O log nor an ``offset`` with its mmap engine.  With read-ahead off a mapping faults page by
page, so the log holds one read a page: the device sees the same requests.  With the default
read-ahead a fault may bring in more than a sample, and the pipeline can beat this ceiling.

For a case on several nodes its readers are shared out among them, and fio runs on all at once: the
rate is that of all bytes in the time of the slowest node.

The page cache is the caller's: evict and prove before :func:`run`, because time that fio itself
spends on invalidating counts in its bandwidth (axboe/fio issue 1422).
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

from iobench.core.cases import Extent, alike
from iobench.core.errors import TrialFailed
from iobench.host.agent import LOCAL, FioResult, NodeAgent
from iobench.host.remote_agent import RemoteAgent

#: Rates from shorter runs are rough: fio's clock ticks in milliseconds, and start-up bursts count.
ENOUGH_S = 2.0
#: A ceiling that read another amount than wanted by more than this share is INVALID.
BYTES_TOLERANCE = 0.01
#: Nodes whose times differ by more than this share did not read together all of the time.
UNEVEN = 0.1
#: fio reads log lines with sscanf("%256s"): longer paths, those with blanks and those that are not
#: ASCII go through a link.
LOG_PATH_MAX = 250
PAGED_NOTE = "mmap without read-ahead, replayed as one read() a page"
MAPPED_NOTE = "mmap replayed by read(): a mapping's own read-ahead may beat this ceiling"

Extents = Sequence[Extent]


@dataclasses.dataclass(frozen=True)
class CeilingPlan:
    """What each reader fetches, in order, ``repeat`` times; ``samples`` counts the repeats too."""

    readers: tuple[tuple[Extent, ...], ...]
    samples: int
    repeat: int = 1

    @property
    def wanted_bytes(self) -> int:
        """Bytes of all reads."""
        return self.repeat * sum(extent.length for reader in self.readers for extent in reader)

    @property
    def distinct_bytes(self) -> int:
        """Bytes of the files that are read at all; samples of one HDF5 chunk share theirs."""
        distinct = 0
        path, end = "", 0
        for extent in sorted({extent for reader in self.readers for extent in reader}):
            if extent.path != path:
                path, end = extent.path, 0
            distinct += max(0, extent.offset + extent.length - max(end, extent.offset))
            end = max(end, extent.offset + extent.length)
        return distinct


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
    opens: int = 0  # of files, by all readers
    distinct_bytes: int = 0  # of the files; the others that were read came from memory
    nodes: tuple[Mapping[str, Any], ...] = ()  # what each of several read


def plan(samples: Sequence[Extents], *, jobs: int, batch: int, repeat: int = 1) -> CeilingPlan:
    """Share out ``samples`` (the extents of each, in the pipeline's order) among ``jobs`` readers.

    ``repeat``: replay the pattern so often; only for warm runs, a cold one reads nothing twice.
    """
    shares: list[list[Extent]] = [[] for _ in range(max(jobs, 1))]
    for number, extents in enumerate(samples):
        shares[number // batch % len(shares)].extend(extents)
    kept = tuple(tuple(share) for share in shares if share)
    return CeilingPlan(kept, len(samples) * repeat, repeat)


@dataclasses.dataclass(frozen=True)
class Fio:
    """How fio is run on a node.

    ``work`` (made when absent) keeps logs, job file and JSON.  ``enter``: words before the command
    (a control group).  ``node``: name of one that ``agent`` is another process on; there the folder
    of ``work`` is removed afterwards.
    """

    work: Path
    limit_s: float = 300.0
    enter: Sequence[str] = ()
    agent: NodeAgent = LOCAL
    node: str = ""

    def replay(self, plan: CeilingPlan, *, read_ahead: bool, most_ms: int = 0) -> FioResult:
        """Read what the plan says, for ``most_ms`` at most (0: all of it); raises as fio does."""
        options = {
            "ioengine": "psync",
            "invalidate": "0",
            "fadvise_hint": "0" if read_ahead else "random",
            "replay_no_stall": "1",
            "allow_file_create": "0",
            **({"runtime": f"{most_ms}ms"} if most_ms else {}),
        }
        links: dict[str, str] = {}
        texts = {
            f"reader{number}.log": "".join(_log_lines(reader, plan.repeat, self._name(links)))
            for number, reader in enumerate(plan.readers)
        }
        logs = [{"read_iolog": str(self.work / name)} for name in texts]
        with self._written(texts, links):
            return self.agent.fio(
                self.work, options, logs, time_limit_s=self.limit_s, enter=self.enter
            )

    def _name(self, links: dict[str, str]) -> Callable[[str], str]:
        """Return what gives a path a name that fio's log can hold: itself, or a new link to it."""

        def name(path: str) -> str:
            if path.isascii() and len(path) <= LOG_PATH_MAX and not any(c.isspace() for c in path):
                return path
            link = f"links/{len(links)}"
            links[link] = path
            return str(self.work / link)

        return name

    @contextlib.contextmanager
    def _written(self, texts: Mapping[str, str], links: Mapping[str, str]) -> Iterator[None]:
        """Write files and links below ``work``, on the node."""
        if isinstance(self.agent, RemoteAgent):
            below = self.work.name
            with self.agent.work_folder(
                self.work.parent,
                {f"{below}/{name}": text for name, text in texts.items()},
                {f"{below}/{name}": target for name, target in links.items()},
            ):
                yield
            return
        self.work.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (self.work / name).write_text(text)
        for name, target in links.items():
            (self.work / name).parent.mkdir(exist_ok=True)
            (self.work / name).unlink(missing_ok=True)  # of an earlier replay
            (self.work / name).symlink_to(target)
        yield


def run(plan: CeilingPlan, *fios: Fio, mapped: bool = False, read_ahead: bool = True) -> Ceiling:
    """Replay a plan with fio, its readers shared out among the nodes of ``fios``, at once.

    ``mapped``: the format is read through mmap.  ``read_ahead``: False where its reader turns
    the kernel's read-ahead off.

    Raises BackendUnavailable without fio and TrialFailed when fio fails or overruns.
    """
    if not plan.wanted_bytes:
        raise TrialFailed("nothing to read: the format says that its samples occupy no bytes")
    paged = mapped and not read_ahead
    if paged:
        cut = (tuple(page for e in reader for page in _pages(e)) for reader in plan.readers)
        plan = dataclasses.replace(plan, readers=tuple(cut))
    done, nodes = _together(plan, fios, read_ahead)
    distinct = plan.distinct_bytes
    notes = [PAGED_NOTE if paged else MAPPED_NOTE] if mapped else []
    if done.runtime_s < ENOUGH_S:
        notes.append(f"a short run: {done.runtime_s:.2f} s")
    if distinct < (1 - BYTES_TOLERANCE) * plan.wanted_bytes:
        notes.append(
            f"read again, so from memory: {1 - distinct / plan.wanted_bytes:.0%} of the bytes"
        )
    return alike(
        Ceiling,
        done,
        samples_per_s=plan.samples / done.runtime_s if done.runtime_s else 0.0,
        wanted_bytes=plan.wanted_bytes,
        iops=done.ios / done.runtime_s if done.runtime_s else 0.0,
        readers=len(plan.readers),
        samples=plan.samples,
        note="; ".join([*notes, *_uneven(nodes)]),
        invalid=_judge(done, plan),
        distinct_bytes=distinct,
        opens=plan.repeat * sum(len({e.path for e in reader}) for reader in plan.readers),
        nodes=nodes,
    )


def _together(
    plan: CeilingPlan, fios: Sequence[Fio], read_ahead: bool
) -> tuple[FioResult, tuple[Mapping[str, Any], ...]]:
    """Return what all nodes read, in the slowest one's time; and what each of several did."""
    if len(fios) == 1:
        return fios[0].replay(plan, read_ahead=read_ahead), ()
    if len(plan.readers) < len(fios):
        raise TrialFailed(
            f"{len(plan.readers)} readers with a batch cannot be shared out among {len(fios)} "
            "nodes: take more samples"
        )
    shares = [dataclasses.replace(plan, readers=plan.readers[i :: len(fios)])
              for i in range(len(fios))]  # fmt: skip
    with concurrent.futures.ThreadPoolExecutor(len(fios)) as pool:
        found = [pool.submit(f.replay, s, read_ahead=read_ahead) for f, s in zip(fios, shares)]
        each = [future.result() for future in found]
    io_bytes, runtime_s = sum(one.io_bytes for one in each), max(one.runtime_s for one in each)
    whole = dataclasses.replace(
        each[0],
        bytes_per_s=io_bytes / runtime_s if runtime_s else 0.0,
        io_bytes=io_bytes,
        runtime_s=runtime_s,
        ios=sum(one.ios for one in each),
        storage_bytes=sum(one.storage_bytes for one in each),
    )
    return whole, tuple(
        {"node": fio.node, "readers": len(share.readers), "io_bytes": one.io_bytes,
         "distinct_bytes": share.distinct_bytes, "storage_bytes": one.storage_bytes,
         "runtime_s": one.runtime_s, "bytes_per_s": one.bytes_per_s}
        for fio, share, one in zip(fios, shares, each)
    )  # fmt: skip


def _uneven(nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what each node reached, and that some of the time not all of them read."""
    if nodes:
        rates = ", ".join(f"{n['node']} {n['bytes_per_s'] / 1e6:,.1f}" for n in nodes)
        yield f"by node, MB/s: {rates}"
        first, last = (pick(n["runtime_s"] for n in nodes) for pick in (min, max))
        if first < (1 - UNEVEN) * last:
            yield f"the first node was done after {first:.2f} s, the last after {last:.2f} s"


def _judge(done: FioResult, plan: CeilingPlan) -> str:
    wanted = plan.wanted_bytes
    if abs(done.io_bytes - wanted) > BYTES_TOLERANCE * wanted:
        return f"fio read {done.io_bytes} bytes where {wanted} were wanted"
    if not done.runtime_s:
        return "fio was done in under a millisecond: too few bytes for a rate"
    return ""


def _pages(extent: Extent) -> Iterator[Extent]:
    """Cut an extent at page boundaries, widened to whole pages at its ends as a fault is."""
    first, end = extent.offset // PAGESIZE, extent.offset + extent.length
    for page in range(first, -(-end // PAGESIZE)):
        start = max(page * PAGESIZE, extent.offset)
        yield Extent(extent.path, start, min((page + 1) * PAGESIZE, end) - start)


def _log_lines(reader: Extents, repeat: int, of: Callable[[str], str]) -> Iterator[str]:
    """Yield an I/O log (fio HOWTO, "Trace file format v2")."""
    uses = collections.Counter(extent.path for extent in reader)
    names = {path: of(path) for path in uses}
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
