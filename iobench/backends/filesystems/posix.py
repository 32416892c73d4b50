"""Filesystems on a block device (ext4, xfs, squashfs ...), and the fallback for unknown ones.

An overlay or a loop device lies on other mounts, which host/mount_stack follows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Mapping

from iobench.core.cases import Scalar
from iobench.core.members import FilesystemBackend
from iobench.core.protocols import Crossed, Filesystem
from iobench.core.records import IoCounters
from iobench.host.mounts import MountInfo
from iobench.host.probes import read

SYS_BLOCK = Path("/sys/dev/block")
SECTOR_BYTES = 512  # of /sys/.../stat, whatever the device's own sector is
#: Filesystems that keep file data in memory of their own -> what that is called.
OWN_CACHE = {"zfs": "the ARC"}


class Posix(Filesystem):
    """A mount whose bytes the kernel accounts per process, if a block device is below it."""

    def __init__(self, *, mount: MountInfo) -> None:
        self._mount = mount
        self._device = _block_device(mount)

    def describe(self, path: Path) -> Mapping[str, Scalar]:
        """Return the mount's facts, and the block device's where there is one."""
        mount = self._mount
        facts = mount.facts()
        if ahead := read(Path("/sys/class/bdi", self._device or mount.device, "read_ahead_kb")):
            facts["read_ahead_kb"] = int(ahead)
        if self._device:
            facts.update(_describe_device(self._device))
        return facts

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return what the whole device delivered, everybody's reads included."""
        fields = read(SYS_BLOCK / self._device / "stat").split() if self._device else []
        if len(fields) < 3:
            return {}
        return {"device_reads": int(fields[0]), "device_read_bytes": int(fields[2]) * SECTOR_BYTES}

    def crossed(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return our processes' ``read_bytes``: right on block devices, mmap included.

        Filesystems without one leave that counter at 0 whatever is read, so nothing counts.
        """
        if not self._device:
            return Crossed(None, f"{self._mount.fstype} has no block device and no counter")
        return Crossed(io.read_bytes, "read_bytes of /proc/self/io")

    def cold(self) -> str:
        """Return "": fadvise evicts from the page cache; else which other cache keeps the bytes."""
        if own := OWN_CACHE.get(self._mount.fstype):
            return (
                f"{self._mount.mount_point} is {self._mount.fstype}: it caches outside the page "
                f"cache ({own}), where nothing can be evicted or counted; put the data on another "
                "filesystem, or ask for warm"
            )
        loop = _disk(self._device) / "loop"
        if self._device and loop.is_dir() and read(loop / "dio") == "0":
            return (
                f"{self._mount.source} is a loop device without direct I/O: its backing file "
                "stays in this machine's page cache; attach it with losetup --direct-io=on"
            )
        return ""


def _block_device(mount: MountInfo) -> str:
    """Return ``major:minor`` of the block device below a mount, "" when there is none.

    btrfs mounts carry an anonymous number, so the source is asked too.
    """
    if (SYS_BLOCK / mount.device).exists():
        return mount.device
    if mount.source.startswith("/dev/") and mount.fstype != "zfs":
        number = read(Path("/sys/class/block", Path(mount.source).resolve().name, "dev"))
        if number and (SYS_BLOCK / number).exists():
            return number
    return ""


def _describe_device(device: str) -> Dict[str, Scalar]:
    facts: Dict[str, Scalar] = {"block_device": (SYS_BLOCK / device).resolve().name}
    disk = _disk(device)
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


def _disk(device: str) -> Path:
    """Return the folder of a device in /sys, or of the disk whose partition it is."""
    folder = (SYS_BLOCK / device).resolve()
    return folder.parent if (folder / "partition").exists() else folder


BACKEND = FilesystemBackend(
    Posix, "a local filesystem on a block device; the fallback for any other"
)
