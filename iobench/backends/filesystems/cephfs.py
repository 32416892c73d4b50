"""CephFS: objects on several servers, by the kernel's client or by ceph-fuse."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Dict, Mapping

from iobench.backends.filesystems._fuse import FuseFilesystem
from iobench.backends.filesystems._network import NETWORK, RECEIVED, counted, interfaces
from iobench.core.cases import Scalar
from iobench.core.errors import DatasetError
from iobench.core.members import FilesystemBackend
from iobench.core.protocols import Crossed
from iobench.core.records import IoCounters
from iobench.core.striping import ALL, Striping
from iobench.host.probes import read

DEBUG = Path("/sys/kernel/debug/ceph")
READ = "objects_read_bytes"
#: Bytes of an object unless its layout says otherwise.
OBJECT_BYTES = 4 << 20
LAYOUTS = ("ceph.file.layout", "ceph.dir.layout")


class Cephfs(FuseFilesystem):
    """ceph-fuse keeps data in memory of its own (``client_oc_size``), the kernel does not."""

    locks = "shared by all clients"
    control = (
        "posix_fadvise empties the page cache; ceph-fuse's object cache (client_oc_size) is "
        "emptied by mounting anew alone: switch client_oc off"
    )

    @property
    def _kernel(self) -> bool:
        return self.mount.fstype == "ceph"

    def layout(self, path: Path) -> Mapping[str, Scalar]:
        """Return the client, and the layout of a file or of new files in a folder."""
        facts: Dict[str, Scalar] = {"client": "kernel" if self._kernel else "ceph-fuse"}
        if layout := _layout(path):
            facts["layout"] = layout
        if self._kernel:
            return facts
        kept = "client_oc of ceph-fuse keeps data, unless it is off: how much is not shown"
        return {**facts, "client_cache": kept, **self.daemon_facts()}

    def stripe(self, folder: Path, wanted: Striping) -> None:
        """Set the folder's layout, which needs the client's right ``p``; larger parts take larger
        objects."""
        if wanted.count == ALL:
            raise DatasetError("it knows no word for all targets: give their number")
        values = {
            "pool": wanted.pool,
            "object_size": wanted.bytes if wanted.bytes > OBJECT_BYTES else 0,
            "stripe_unit": wanted.bytes,
            "stripe_count": wanted.count,
        }
        for name, value in values.items():
            if value:
                os.setxattr(folder, f"ceph.dir.layout.{name}", str(value).encode())

    def striping(self, path: Path) -> Striping:
        """Return the layout of a file, or that a folder sets for new ones."""
        found = dict(field.partition("=")[::2] for field in _layout(path).split())
        count, size = (int(found.get(f"stripe_{name}", 0)) for name in ("count", "unit"))
        return Striping(count, size, found.get("pool", ""))

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return what was read from the object servers: by debugfs (root) or by the daemon."""
        if not self._kernel:
            return super().counters(path)
        texts = [read(size) for size in DEBUG.glob("*/metrics/size")]
        found = [n for text in texts if (n := metrics_read(text)) is not None]
        return {READ: sum(found)} if len(found) == 1 else interfaces()

    def crossed(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return what came from the object servers, else what the node received."""
        if not self._kernel:
            return super().crossed(io, moved)
        if READ not in moved:
            return counted(moved, RECEIVED, NETWORK, "debugfs is root's: no counter can be read")
        return counted(moved, READ, "total read size in the client's metrics (debugfs)", "")


def _layout(path: Path) -> str:
    """Return "stripe_unit=N stripe_count=N object_size=N pool=NAME"; "" where none is shown."""
    for name in LAYOUTS:
        with contextlib.suppress(OSError):
            return os.getxattr(path, name).decode(errors="replace")
    return ""


def metrics_read(text: str) -> int | None:
    """Return total_sz of the row ``read`` of a client's metrics/size; None without one."""
    rows = (line.split() for line in text.splitlines())
    return next((int(row[5]) for row in rows if len(row) == 6 and row[0] == "read"), None)


BACKEND = FilesystemBackend(
    Cephfs, "objects on several servers, by the kernel or ceph-fuse",
    fstypes=frozenset({"ceph", "fuse.ceph-fuse", "fuse.ceph"}),
    magic=frozenset({0x00C36400, 0x65735546}),
)  # fmt: skip
