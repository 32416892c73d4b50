"""A FUSE filesystem that shows a folder, read-only, and takes a stated time for each read.

Try it: ``python -m benchmarks.delayed_mount FOLDER MOUNTPOINT 0.01``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iobench.core.errors import BackendUnavailable

#: Requests that the kernel and the daemon work on at a time; libfuse's own limits are 12 and 10.
AT_A_TIME = 64
START_S = 20.0
KEYS = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")


def serve(root: str, mount: str, delay_s: float) -> None:
    """Serve until the filesystem is unmounted."""
    fuse: Any = importlib.import_module("mfusepy")

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
            time.sleep(delay_s)
            return os.pread(fh, size, offset)

        def release(self, path: str, fh: int) -> None:
            os.close(fh)

    fuse.FUSE(
        Delayed(), mount, foreground=True, ro=True, fsname="delayed", subtype="delayed",
        max_threads=AT_A_TIME,
    )  # fmt: skip


@contextlib.contextmanager
def delayed(root: Path, mount: Path, delay_s: float) -> Iterator[None]:
    """Mount ``root`` at the empty folder ``mount``; unmount at the end.

    Raises BackendUnavailable, with what the daemon wrote, where it does not come up.
    """
    argv = [sys.executable, "-m", "benchmarks.delayed_mount", str(root), str(mount), str(delay_s)]
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
    serve(sys.argv[1], sys.argv[2], float(sys.argv[3]))
