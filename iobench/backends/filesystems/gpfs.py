"""GPFS (IBM Storage Scale): blocks over all disks of a pool; its client has a cache of its own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Dict, Mapping

from iobench.backends.filesystems._network import NetworkFilesystem
from iobench.core.cases import Scalar
from iobench.core.members import FilesystemBackend
from iobench.core.protocols import Crossed
from iobench.core.records import IoCounters
from iobench.host.probes import ask, fields

#: Its programs are not in PATH as a rule.
PROGRAMS = "/usr/lpp/mmfs/bin"
#: Lines of `mmlsattr -L` -> names of facts.
ATTRIBUTES = {
    "storage pool name": "pool",
    "fileset name": "fileset",
    "data replication": "data_replication",
    "Misc attributes": "attributes",
    "Encrypted": "encrypted",
}


class Gpfs(NetworkFilesystem):
    """A mount.  The pagepool, not the page cache, keeps data: no call here counts or empties it."""

    control = (
        "none: the pagepool is outside the page cache; GPFS_CLEAR_FILE_CACHE of gpfs_fcntl is not "
        "used; servers' caches cannot be emptied"
    )
    locks = "shared by all clients"

    def layout(self, path: Path) -> Mapping[str, Scalar]:
        """Return pool, replication and flags of a file, and the filesystem's block size."""
        facts: Dict[str, Scalar] = {}
        status, text = ask([_program("mmlsattr"), "-L", str(path)])
        facts.update({"layout": f"not known: {text}"} if status else attributes(text))
        status, text = ask([_program("mmlsfs"), self.mount.source.rpartition("/")[2], "-B"])
        if not status and (size := re.search(r"^\s*-B\s+(\d+)", text, re.M)):
            facts["stripe_size"] = int(size[1])
        return facts

    def crossed(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return None: the bytes of mmpmon are those that applications read, cached or not."""
        return Crossed(None, "mmpmon counts what the pagepool serves together with what disks do")

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return {}: see :meth:`crossed`."""
        return {}

    def cold(self) -> str:
        """Return why it cannot be cold."""
        return (
            f"{self.mount.mount_point} is gpfs: it caches outside the page cache (the pagepool), "
            "where nothing can be evicted or counted; put the data on another filesystem, or ask "
            "for warm"
        )


def attributes(text: str) -> Dict[str, Scalar]:
    """Return facts of what `mmlsattr -L` prints; ``offline``: reading brings it back from tape."""
    rows = fields(text)
    facts: Dict[str, Scalar] = {
        name: rows[row] for row, name in ATTRIBUTES.items() if rows.get(row)
    }
    if "OFFLINE" in rows.get("Misc attributes", "").split():
        facts["offline"] = True
    return facts or {"layout": "not known: mmlsattr -L was not understood"}


def _program(name: str) -> str:
    return shutil.which(name) or f"{PROGRAMS}/{name}"


BACKEND = FilesystemBackend(
    Gpfs, "blocks over all disks of a pool; never cold", fstypes=frozenset({"gpfs"}),
    magic=frozenset({0x47504653}),
)  # fmt: skip
