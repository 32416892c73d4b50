"""The storage roofs of one mount (METHOD 3.2 and 3.3): most bytes and most small reads a second.

A scratch file is written, evicted and read once by fio: in large pieces one after the other, then
4 KiB at random with one and with several readers.  Nothing is read twice, so no cache can help
but one beyond this machine.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from iobench import fio, pagecache
from iobench.errors import CacheStateError

SCRATCH_BYTES = 512 << 20
LARGE_BYTES = 1 << 20
SMALL_BYTES = 4096
#: Never more than this share of the free space.
FREE_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Roofs:
    """B_max and IOPS_max of a mount; ``direct`` tells whether the page cache was bypassed.

    ``iops_1`` is at depth 1 (1 / latency), ``iops_n`` with ``depth`` readers (Little's law).
    """

    bytes_per_s: float
    iops_1: float
    iops_n: float
    depth: int
    direct: bool
    scratch_bytes: int

    @property
    def ridge_bytes(self) -> float:
        """Size of a read above which bandwidth binds, below which operations do (METHOD 3.3)."""
        return self.bytes_per_s / self.iops_n if self.iops_n else 0.0


def probe(
    folder: Path,
    *,
    depth: int = 16,
    seconds: float = 1.5,
    scratch_bytes: int = SCRATCH_BYTES,
    enter: Sequence[str] = (),
) -> Roofs:
    """Measure the mount under ``folder``; about three times ``seconds``, plus writing the scratch.

    ``enter`` goes before fio's command line (a control group).  Raises BackendUnavailable without
    fio, CacheStateError when the mount has too little room, TrialFailed when fio fails.
    """
    room = int(shutil.disk_usage(folder).free * FREE_SHARE)
    size = min(scratch_bytes, room) // LARGE_BYTES * LARGE_BYTES
    if size < depth * LARGE_BYTES:
        raise CacheStateError(f"{folder} has too little free space to probe its speed: free some")
    with tempfile.TemporaryDirectory(prefix="iobench-probe-", dir=folder) as name:
        scratch = Path(name, "scratch")
        _write(scratch, size)
        direct = _direct_works(scratch)

        def measure(rw: str, block: int, jobs: int) -> fio.FioResult:
            pagecache.evict([scratch])
            share = size // jobs // block * block
            return fio.run(
                Path(name),
                fio.job_file(
                    {
                        "ioengine": "psync",
                        "filename": str(scratch),
                        "rw": rw,
                        "bs": str(block),
                        "size": str(share),
                        "runtime": f"{max(seconds, 0.2):.1f}",
                        "direct": "1" if direct else "0",
                        "invalidate": "0",
                        "allow_file_create": "0",
                    },
                    [{"offset": str(number * share)} for number in range(jobs)],
                ),
                time_limit_s=60 + 10 * seconds,
                enter=enter,
            )

        large = measure("read", LARGE_BYTES, min(depth, 4))
        one = measure("randread", SMALL_BYTES, 1)
        several = measure("randread", SMALL_BYTES, depth)
    return Roofs(
        bytes_per_s=large.bytes_per_s,
        iops_1=one.ios / one.runtime_s if one.runtime_s else 0.0,
        iops_n=several.ios / several.runtime_s if several.runtime_s else 0.0,
        depth=depth,
        direct=direct,
        scratch_bytes=size,
    )


def _write(path: Path, size: int) -> None:
    """Write bytes that no layer below can compress or leave out as holes."""
    with path.open("wb") as file:
        for _ in range(size // LARGE_BYTES):
            file.write(os.urandom(LARGE_BYTES))
        file.flush()
        os.fsync(file.fileno())


def _direct_works(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True
