"""The daemon behind a FUSE mount: which process it is, and what it has read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Dict, Mapping, Optional

from iobench.backends.filesystems._network import NetworkFilesystem, counted
from iobench.core.cases import Scalar
from iobench.core.protocols import Crossed
from iobench.core.records import IoCounters
from iobench.host.mounts import MountInfo
from iobench.host.probes import fields, read

DEVICE = "/dev/fuse"
READ = "daemon_read_bytes"
#: Device number of a mount -> its daemon, as it was last seen.
_KNOWN: Dict[str, int] = {}


class FuseFilesystem(NetworkFilesystem):
    """A mount whose daemon gets from servers, by read(), all that it does not keep itself."""

    def daemon_facts(self) -> Dict[str, Scalar]:
        """Return the daemon's process, as far as this user may see it."""
        pid = daemon_of(self.mount)
        return {"daemon": read(f"/proc/{pid}/comm"), "daemon_pid": pid} if pid else {}

    def layout(self, path: Path) -> Mapping[str, Scalar]:
        """Return the daemon."""
        return self.daemon_facts()

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return what the daemon read: from its servers, and the kernel's requests (80 bytes)."""
        io = fields(read(f"/proc/{daemon_of(self.mount) or 'none'}/io"))
        return {READ: int(io["rchar"])} if "rchar" in io else {}

    def crossed(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return what the daemon read: bytes that it kept in memory are not among them."""
        return counted(
            moved,
            READ,
            "rchar of /proc/PID/io of the mount's daemon",
            f"only root, or who mounted {self.mount.mount_point}, may read its daemon's counters",
        )


def daemon_of(mount: MountInfo) -> Optional[int]:
    """Return the process that serves a FUSE mount; None where it is not seen (another user's)."""
    pid = _KNOWN.get(mount.device)
    if pid is None or not _serves(pid, mount):
        found = (int(name) for name in os.listdir("/proc") if name.isdigit())
        pid = next((number for number in found if _serves(number, mount)), None)
        _KNOWN.pop(mount.device, None)
        if pid is not None:
            _KNOWN[mount.device] = pid
    return pid


def _serves(pid: int, mount: MountInfo) -> bool:
    """Return whether a process holds the connection of the mount.

    The kernel names it since 6.16 (``fuse_connection`` in fdinfo); before, the daemon's command
    line must name the mount point.
    """
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{fd}") == DEVICE:
                named = fields(read(f"/proc/{pid}/fdinfo/{fd}")).get("fuse_connection")
                if named is not None and named == mount.device.partition(":")[2]:
                    return True
                if named is None and mount.mount_point in read(f"/proc/{pid}/cmdline"):
                    return True
    return False
