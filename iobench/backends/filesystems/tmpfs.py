"""Files that live in memory: they can be read, but never cold."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping, Optional, Tuple

from iobench.model import IoCounters, Scalar
from iobench.mountinfo import Mount
from iobench.protocols import Filesystem, FilesystemBackend


class Tmpfs:
    """tmpfs or ramfs: the page cache is the storage."""

    def __init__(self, *, mount: Mount) -> None:
        self._mount = mount

    def describe(self, path: Path) -> Mapping[str, Scalar]:
        """Return the mount's facts; there is no device."""
        mount = self._mount
        return {
            "fstype": mount.fstype,
            "mount_point": mount.mount_point,
            "source": mount.source,
            "options": ",".join((*mount.options, *mount.super_options)),
            "device": mount.device,
        }

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return {}: nothing crosses this mount."""
        return {}

    def storage_bytes(self, io: IoCounters) -> Tuple[Optional[int], str]:
        """Return 0: no byte comes from a device."""
        return 0, "none: the files are memory"

    def cold(self) -> str:
        """Return why it cannot be cold."""
        return (
            f"{self._mount.mount_point} is {self._mount.fstype}: its files are memory and cannot "
            "be cold; put the data on a disk or network filesystem, or ask for warm"
        )


def make(*, mount: Mount) -> Filesystem:
    """Return the filesystem of one mount."""
    return Tmpfs(mount=mount)


BACKEND = FilesystemBackend(
    make=make, summary="files in memory: always warm", fstypes=frozenset({"tmpfs", "ramfs"})
)
