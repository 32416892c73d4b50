"""Any FUSE filesystem that no other file knows: described, never believed to be cold."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping

from iobench.backends.filesystems._fuse import FuseFilesystem, daemon_of
from iobench.core.cases import Scalar
from iobench.core.members import FilesystemBackend
from iobench.core.protocols import Crossed
from iobench.core.records import IoCounters
from iobench.host.probes import read

#: Mounts whose daemon reads a block device, which it opens itself.
ON_A_DEVICE = "fuseblk"


class Fuse(FuseFilesystem):
    """What its daemon keeps, and from where it reads (files, servers, memory) is not known."""

    control = "posix_fadvise empties the page cache; the daemon may keep the data: nothing is known"

    def layout(self, path: Path) -> Mapping[str, Scalar]:
        """Return the daemon and its command line, which often names what it reads."""
        command = read(f"/proc/{daemon_of(self.mount) or 'none'}/cmdline").replace("\0", " ")
        return {**self.daemon_facts(), **({"daemon_command": command} if command else {})}

    def crossed(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return None: a daemon that reads files may be served by the page cache."""
        if self.mount.fstype == ON_A_DEVICE:
            return Crossed(None, "a FUSE daemon reads the disk")
        what = f"what the daemon of {self.mount.fstype} keeps, and reads from where, is not known"
        return Crossed(None, what)


BACKEND = FilesystemBackend(
    Fuse, "any other FUSE filesystem: what crosses it is not counted",
    fstypes=frozenset({"fuse", "fuse.*", "fuseblk"}), magic=frozenset({0x65735546}),
)  # fmt: skip
