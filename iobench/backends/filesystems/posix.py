"""Filesystems on a block device (ext4, xfs, btrfs ...), and the fallback for unknown ones.

What a mount stands on (an overlay's layers, the file of a loop device) is host/stacked's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Mapping, Optional

from iobench.core.cases import Scalar
from iobench.core.members import FilesystemBackend
from iobench.core.protocols import Crossed, Filesystem
from iobench.core.records import IoCounters
from iobench.host import mounts
from iobench.host.mounts import MountInfo
from iobench.host.probes import read

SECTOR_BYTES = 512  # of /sys/.../stat, whatever the device's own sector is
#: Filesystems that keep file data in memory of their own -> what that is called.
OWN_CACHE = {"zfs": "the ARC"}
#: Filesystems that usually store blocks compressed: what crosses is less than what is needed.
COMPRESSED = frozenset({"squashfs", "erofs"})
#: The kernel's count of a process; without it nothing is counted here.
PROCESS_IO = Path("/proc/self/io")


class Posix(Filesystem):
    """A mount whose bytes the kernel accounts per process, if block devices are below it."""

    def __init__(self, *, mount: MountInfo) -> None:
        self._mount = mount
        self._device = mounts.block_device(mount)
        self._disks = mounts.disks(self._device)

    def describe(self, path: Path) -> Mapping[str, Scalar]:
        """Return the mount's facts, and the block device's where there is one."""
        mount = self._mount
        facts = mount.facts()
        if ahead := read(Path("/sys/class/bdi", self._device or mount.device, "read_ahead_kb")):
            facts["read_ahead_kb"] = int(ahead)
        if self._device:
            facts.update(_describe_device(self._device, self._disks))
        return facts

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return what the whole device delivered, everybody's reads included."""
        fields = read(mounts.SYS_BLOCK / self._device / "stat").split() if self._device else []
        if len(fields) < 3:
            return {}
        return {"device_reads": int(fields[0]), "device_read_bytes": int(fields[2]) * SECTOR_BYTES}

    def crossed(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return our processes' ``read_bytes``: right on block devices, mmap included.

        Filesystems without one leave that counter at 0 whatever is read, so nothing counts; of
        compressed blocks fewer bytes cross than are needed.
        """
        mount = self._mount
        if not self._device:
            words = f"{mount.fstype} at {mount.mount_point} counts none for a process"
            return Crossed(None, words)
        if not PROCESS_IO.exists():
            return Crossed(None, f"this kernel has no {PROCESS_IO}")
        if (
            mount.fstype in COMPRESSED
            or {"compress", "compress-force"} & dict(mount.pairs()).keys()
        ):
            return Crossed(None, f"{mount.fstype} at {mount.mount_point} may be compressed")
        at = ", at the loop device" if self._loop else ""
        return Crossed(io.read_bytes, f"read_bytes of /proc/self/io{at}")

    def cold(self) -> str:
        """Return "": fadvise evicts from the page cache; else which other cache keeps the bytes."""
        mount = self._mount
        if own := OWN_CACHE.get(mount.fstype):
            return (
                f"{mount.mount_point} is {mount.fstype}: it caches outside the page "
                f"cache ({own}), where nothing can be evicted or counted; put the data on another "
                "filesystem, or ask for warm"
            )
        if self._loop and read(self._loop / "dio") == "0":
            return (
                f"{mount.source} is a loop device without direct I/O: its backing file "
                "stays in this machine's page cache; attach it with losetup --direct-io=on"
            )
        return ""

    @property
    def _loop(self) -> Optional[Path]:
        """Return the folder in /sys of the loop device below, or None."""
        return next((d / "loop" for d in self._disks if (d / "loop").is_dir()), None)


def _describe_device(device: str, disks: List[Path]) -> Dict[str, Scalar]:
    facts: Dict[str, Scalar] = {"block_device": (mounts.SYS_BLOCK / device).resolve().name}
    disk = disks[0]
    for name in ("rotational", "scheduler"):
        if value := read(disk / "queue" / name):
            facts[name] = value if name == "scheduler" else value == "1"
    loop = disk / "loop"
    facts["loop"] = loop.is_dir()
    if loop.is_dir():
        facts["loop_backing_file"] = read(loop / "backing_file")
        facts["loop_direct_io"] = read(loop / "dio") == "1"
    facts["virtual_disk"] = "virtio" in str(disk) or disk.name.startswith(("vd", "xvd"))
    return facts


BACKEND = FilesystemBackend(
    Posix, "a local filesystem on a block device; the fallback for any other"
)
