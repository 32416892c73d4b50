"""Files that live in memory: they can be read, but never cold."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping

from iobench.core.cases import Scalar
from iobench.core.members import FilesystemBackend
from iobench.core.protocols import Crossed, Filesystem
from iobench.core.records import IoCounters
from iobench.host.mounts import MountInfo


class Tmpfs(Filesystem):
    """tmpfs or ramfs: the page cache is the storage."""

    def __init__(self, *, mount: MountInfo) -> None:
        self._mount = mount

    def describe(self, path: Path) -> Mapping[str, Scalar]:
        """Return the mount's facts; there is no device."""
        return self._mount.facts()

    def crossed(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return 0: no byte comes from a device."""
        return Crossed(0, "none: the files are memory")

    def cold(self) -> str:
        """Return why it cannot be cold."""
        return (
            f"{self._mount.mount_point} is {self._mount.fstype}: its files are memory and cannot "
            "be cold; put the data on a disk or network filesystem, or ask for warm"
        )


BACKEND = FilesystemBackend(
    Tmpfs,
    "files in memory: always warm",
    fstypes=frozenset({"tmpfs", "ramfs"}),
    magic=frozenset({0x01021994, 0x858458F6}),
)
