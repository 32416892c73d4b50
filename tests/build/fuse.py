"""A writable mount through FUSE: an overlay of folders below a test's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.capabilities import fuse_program, need


class Mounted(NamedTuple):
    """A mount and its daemon: while that is stopped, the filesystem does not answer."""

    path: Path
    daemon: subprocess.Popen[bytes]


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Mounted]:
    """Yield a mount that is empty and can be written."""
    need("fuse")
    below = {name: folder / name for name in ("lowerdir", "upperdir", "workdir")}
    mount = folder / "mount"
    for path in (*below.values(), mount):
        path.mkdir(parents=True)
    options = ",".join(f"{name}={path}" for name, path in below.items())
    words = [str(fuse_program("fuse-overlayfs")), "-f", "-o", options, str(mount)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as daemon:
        try:
            while not os.path.ismount(mount):
                assert daemon.poll() is None, "the daemon ended"
                time.sleep(0.02)
            yield Mounted(mount, daemon)
        finally:
            daemon.send_signal(signal.SIGCONT)
            umount = shutil.which("fusermount3") or shutil.which("fusermount") or "umount"
            flags = [] if umount.endswith("umount") and "fuser" not in umount else ["-u"]
            subprocess.run([umount, *flags, mount], check=True)
