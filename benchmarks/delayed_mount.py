"""A FUSE filesystem that shows a folder, read-only, and takes a stated time for each read.

With a rate it is one disk: it works on one request at a time, each takes its bytes / rate, and the
time in which nothing was asked for is lost.  Pages stay in the page cache between opens.
Try it: ``python -m benchmarks.delayed_mount FOLDER MOUNTPOINT 0.01 [BYTES_PER_SECOND]``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iobench.core.errors import BackendUnavailable

#: Requests that the kernel and the daemon work on at a time; libfuse's own limits are 12 and 10.
AT_A_TIME = 64
START_S = 20.0
KEYS = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")


def serve(root: str, mount: str, delay_s: float, rate: float = 0.0) -> None:
    """Serve until the filesystem is unmounted; ``rate``: bytes/s, 0: as fast as the folder."""
    fuse: Any = importlib.import_module("mfusepy")
    one_disk = threading.Lock() if rate else contextlib.nullcontext()
    options = {"kernel_cache": True} if rate else {}

    class Delayed(fuse.Operations):  # type: ignore[misc]
        use_ns = True

        def init_with_config(self, connection: Any, config: Any) -> None:
            connection.max_background = connection.congestion_threshold = AT_A_TIME

        def getattr(self, path: str, fh: Any = None) -> dict[str, int]:
            found = os.lstat(root + path)
            times = {f"st_{k}": getattr(found, f"st_{k}_ns") for k in ("atime", "mtime", "ctime")}
            return {**{key: getattr(found, key) for key in KEYS}, **times}

        def readdir(self, path: str, fh: Any) -> list[str]:
            return [".", "..", *os.listdir(root + path)]

        def statfs(self, path: str) -> dict[str, int]:
            found = os.statvfs(root + path)
            return {key: getattr(found, key) for key in dir(found) if key.startswith("f_")}

        def open(self, path: str, flags: int) -> int:
            return os.open(root + path, os.O_RDONLY)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            with one_disk:
                begun = time.perf_counter()
                data = os.pread(fh, size, offset)
                takes_s = delay_s + (len(data) / rate if rate else 0.0)
                time.sleep(max(0.0, begun + takes_s - time.perf_counter()))
            return data

        def release(self, path: str, fh: int) -> None:
            os.close(fh)

    fuse.FUSE(
        Delayed(), mount, foreground=True, ro=True, fsname="delayed", subtype="delayed",
        max_threads=AT_A_TIME, **options,
    )  # fmt: skip


@contextlib.contextmanager
def delayed(root: Path, mount: Path, delay_s: float, rate: float = 0.0) -> Iterator[None]:
    """Mount ``root`` at the empty folder ``mount``; unmount at the end.

    Raises BackendUnavailable, with what the daemon wrote, where it does not come up.
    """
    words = (str(root), str(mount), str(delay_s), str(rate))
    argv = [sys.executable, "-m", "benchmarks.delayed_mount", *words]
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(argv, stderr=told, cwd=Path(__file__).parents[1])
        try:
            late = time.monotonic() + START_S
            while not os.path.ismount(mount):
                if process.poll() is not None or time.monotonic() > late:
                    told.seek(0)
                    raise BackendUnavailable(f"no FUSE mount at {mount}: {told.read().strip()}")
                time.sleep(0.05)
            yield
        finally:
            _unmount(mount, process)


def _unmount(mount: Path, process: subprocess.Popen[Any]) -> None:
    """Unmount; a process that was just killed may hold a file for a moment more."""
    for _ in range(50):
        if process.poll() is not None:
            return
        subprocess.run(["fusermount3", "-u", str(mount)], capture_output=True, check=False)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    process.terminate()
    process.wait(START_S)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], *map(float, sys.argv[3:]))
