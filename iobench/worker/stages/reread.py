"""What the servers keep: working sets of growing size, each read twice, this client emptied before.

The case's files, one after the other, are cut into sets, each twice as large as the one before, so
that the largest is half of all.  It is read first, to displace the others from the servers' memory;
then each is read twice, the smallest first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

from iobench.core.cases import Extent
from iobench.core.dataset import files_of
from iobench.core.errors import CacheStateError, TrialFailed, plain
from iobench.core.protocols import Filesystem
from iobench.core.records import NO_STEPS
from iobench.core.stages import Measured, Outcome, Stage
from iobench.host import filesystems, io_counters, page_cache
from iobench.worker.rank import RankRun
from iobench.worker.stages._crew import Crew, span_s

PROCESSES = 4
BLOCK = 1 << 20
#: Bytes of the smallest set at least, and how many sets there are at most and at least.
LEAST, MOST_SETS, LEAST_SETS = 8 << 20, 8, 3
#: Share of a set's pages that may stay resident before it is read; of its bytes that have to cross
#: the mount.
RESIDENT_MAX, CROSSED_MIN = 0.001, 0.98


def cut(files: Sequence[Path]) -> List[List[Extent]]:
    """Return the sets, the smallest first, as blocks of files.

    Raises TrialFailed where the files are too small for three of them.
    """
    blocks = [
        Extent(str(path), at, min(BLOCK, size - at))
        for path in files
        for size in [os.stat(path).st_size]
        for at in range(0, size, BLOCK)
    ]
    total = sum(block.length for block in blocks)
    units = next((2**n - 1 for n in range(MOST_SETS, 0, -1) if total >= LEAST * (2**n - 1)), 0)
    if units < 2**LEAST_SETS - 1:
        raise TrialFailed(
            f"the files have {total / 1e6:,.1f} MB: reading working sets of growing size again "
            f"takes {LEAST * (2**LEAST_SETS - 1) / 1e6:,.0f} MB at least, and twice the servers' "
            "cache to find its size"
        )
    sets: List[List[Extent]] = [[]]
    done = 0
    for block in blocks:
        if done >= total * (2 ** len(sets) - 1) / units:
            sets.append([])
        sets[-1].append(block)
        done += block.length
    return sets


def reads(blocks: Sequence[Extent]) -> Callable[[], int]:
    """Return what reads these blocks in their order, and returns their bytes."""
    buffer = memoryview(bytearray(BLOCK))

    def run() -> int:
        nbytes, fd, name = 0, -1, ""
        try:
            for path, offset, length in blocks:
                if path != name:
                    if fd >= 0:
                        os.close(fd)
                    fd, name = os.open(path, os.O_RDONLY), path
                nbytes += os.preadv(fd, [buffer[:length]], offset)
        finally:
            if fd >= 0:
                os.close(fd)
        return nbytes

    return run


class Sweep:
    """The passes over the sets on one filesystem; ``nbytes``: read by all of them."""

    def __init__(self, crew: Crew, filesystem: Filesystem) -> None:
        self._crew, self._filesystem = crew, filesystem
        self.nbytes = 0

    def again(self, blocks: Sequence[Extent]) -> Dict[str, Any]:
        """Read a set twice; return its bytes, and the seconds of both passes."""
        first_s, again_s = self.once(blocks), self.once(blocks)
        nbytes = sum(block.length for block in blocks)
        return {"bytes": nbytes, "first_s": first_s, "again_s": again_s}

    def once(self, blocks: Sequence[Extent]) -> float:
        """Read a set of which this client holds nothing; return the seconds.

        Raises CacheStateError where its pages stay, TrialFailed where a file cannot be read, or
        where less than the set crossed the mount: a cache of the client's own served the rest.
        """
        paths = [Path(name) for name in dict.fromkeys(block.path for block in blocks)]
        _evict(paths)
        parts = [len(blocks) * i // PROCESSES for i in range(PROCESSES + 1)]
        shares = [(blocks[a:b],) for a, b in zip(parts, parts[1:])]
        counters = self._filesystem.counters(paths[0])
        before = io_counters.snapshot(self._crew.pids)
        try:
            spells = self._crew.together(reads, shares)
        except OSError as error:
            raise TrialFailed(plain(error)) from None
        nbytes, wanted = sum(s.done for s in spells), sum(block.length for block in blocks)
        if nbytes != wanted:
            raise TrialFailed(f"{nbytes} of {wanted} bytes could be read: a file became shorter")
        after = self._filesystem.counters(paths[0])
        io = io_counters.difference(before, io_counters.snapshot(self._crew.pids))
        moved = {name: after[name] - n for name, n in counters.items() if name in after}
        crossed = self._filesystem.crossed(io, moved).nbytes
        if crossed is not None and crossed < CROSSED_MIN * nbytes:
            raise TrialFailed(
                f"{crossed} of {nbytes} bytes of a working set crossed the mount: the rest came "
                "from a cache of this client, which hides the servers'; switch it off "
                '(docs/filesystems.md, "Caches that are not the page cache")'
            )
        self.nbytes += nbytes
        return span_s(spells)


def _evict(paths: Sequence[Path]) -> None:
    page_cache.evict(paths)
    left = page_cache.residency(paths).fraction
    if left is not None and left > RESIDENT_MAX:
        raise CacheStateError(f"not cold: {left:.2%} of the pages stayed resident after eviction")


def _swept(job: RankRun) -> Outcome:
    sets = cut(files_of(job.task.trial.case, job.request.dataset))
    filesystem = filesystems.filesystem_for(Path(sets[0][0].path))[1]
    with Crew(PROCESSES) as crew:
        sweep, before = Sweep(crew, filesystem), io_counters.snapshot(crew.pids)
        sweep.once(sets[-1])
        found = [sweep.again(blocks) for blocks in sets]
        io = io_counters.difference(before, io_counters.snapshot(crew.pids))
    notes = {"reread": {"sets": found, "processes": PROCESSES}}
    return Measured(NO_STEPS, []), io, {"notes": notes, "bytes_needed": sweep.nbytes}


BACKEND = Stage(
    _swept,
    "working sets of growing size, each read twice: what the servers' caches hold",
    rung=6,
    asks="",
    caches=("cold",),
    always=True,
    once=False,
    one_rank=True,
    on_host=True,
    of_mount=True,
    named=True,
    loop_s=30.0,
)
