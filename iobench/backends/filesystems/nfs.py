"""NFS: one server, or several with pNFS; the kernel counts each mount apart."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, Mapping

from iobench.backends.filesystems._network import NetworkFilesystem, counted
from iobench.core.cases import Scalar
from iobench.core.members import FilesystemBackend
from iobench.core.protocols import Crossed
from iobench.core.records import IoCounters
from iobench.host.probes import read

MOUNTSTATS = Path("/proc/self/mountstats")
READ = "server_read_bytes"
#: Fields of the line ``bytes:`` (nfs_iostat.h): what applications read, and what servers sent.
NORMAL_READ, DIRECT_READ, SERVER_READ = 0, 2, 4


class Nfs(NetworkFilesystem):
    """Attributes are kept for ``acregmax`` seconds; data in the page cache (``fsc``: on disk)."""

    @property
    def locks(self) -> str:  # type: ignore[override]
        """Who keeps to locks, by the mount's options."""
        local = self.mount.option("local_lock") or "none"
        if "nolock" in self.mount.super_options:
            local = "all"
        return "shared by all clients" if local == "none" else f"of this host alone: {local}"

    def layout(self, path: Path) -> Mapping[str, Scalar]:
        """Return version, transfer size, connections and pNFS."""
        found: Dict[str, Scalar] = {}
        for name in ("vers", "rsize", "nconnect", "proto", "actimeo", "acregmax"):
            if value := self.mount.option(name):
                found[f"nfs_{name}"] = int(value) if value.isdigit() else value
        if pnfs := re.search(r"pnfs=([^,\n]+)", self._section()):
            found["nfs_pnfs"] = pnfs[1]
        if "fsc" in self.mount.super_options:
            found["client_cache_on_disk"] = "FS-Cache (fsc): files may come from this host's disk"
        return found

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return what the kernel asked servers for, of this mount alone; anybody may read it."""
        if not (line := re.search(r"^\tbytes:\s+([\d ]+)$", self._section(), re.M)):
            return {}
        values = [int(word) for word in line[1].split()]
        return {READ: values[SERVER_READ], "application_read_bytes": values[NORMAL_READ]}

    def crossed(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return what servers sent."""
        absent = f"{MOUNTSTATS} has no byte counts of {self.mount.mount_point}"
        return counted(moved, READ, "bytes read from servers, in /proc/self/mountstats", absent)

    def _section(self) -> str:
        return section(read(MOUNTSTATS), self.mount.mount_point)


def section(text: str, mount_point: str) -> str:
    """Return the last part of mountstats that is about a mount point; "" without one."""
    escaped = re.sub(r"[ \t\n\\#]", lambda m: f"\\{ord(m[0]):03o}", mount_point)
    parts = re.split(r"^(?=device )", text, flags=re.M)
    mine = [part for part in parts if f" mounted on {escaped} with fstype " in part]
    return mine[-1] if mine else ""


BACKEND = FilesystemBackend(
    Nfs, "a server's folder; the kernel counts its bytes", fstypes=frozenset({"nfs", "nfs4"}),
    magic=frozenset({0x6969}),
)  # fmt: skip
