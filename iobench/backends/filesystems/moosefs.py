"""MooseFS: chunks on several servers, through the FUSE client mfsmount."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Dict, List, Mapping

from iobench.backends.filesystems._fuse import FuseFilesystem
from iobench.core.cases import Scalar
from iobench.core.members import FilesystemBackend
from iobench.host.mounts import whole_of
from iobench.host.probes import ask, fields, read

#: Lines of the hidden file ``.params`` in the mount's root -> names of facts.
PARAMS = {
    "moosefs_mount_version": "client_version",
    "moosefs_master_version": "server_version",
    "working_keep_cache_mode": "page_cache_mode",
    "mfsreadaheadsize": "client_read_ahead_mib",
    "mfsreadaheadleng": "client_read_ahead_step_bytes",
}
_COPY = re.compile(r"\tcopy \d+: (\S+):\d+ \(status:(\w+)")


class Moosefs(FuseFilesystem):
    """mfsmount keeps the read-ahead of open files (``mfsreadaheadsize``), which its own counter
    shows: it reads again what it has dropped."""

    locks = "shared by all clients (flock and POSIX locks; mfsnoposixlocks, mfsnobsdlocks)"

    def layout(self, path: Path) -> Mapping[str, Scalar]:
        """Return versions, cache settings, and the servers that hold a file's chunks."""
        facts: Dict[str, Scalar] = self.daemon_facts()
        whole = whole_of(self.mount)
        params = fields(read(Path(whole.mount_point, ".params"))) if whole else {}
        facts.update({name: params[line] for line, name in PARAMS.items() if line in params})
        if os.path.isfile(path):
            status, text = ask(["mfsfileinfo", str(path)])
            facts["layout"] = f"not known: {text}" if status else chunks(text)
        return facts


def chunks(text: str) -> str:
    """Return "CHUNKS chunks, COPIES copies on SERVERS" of what mfsfileinfo prints."""
    copies: List[str] = [match[1] for match in _COPY.finditer(text) if match[2] == "VALID"]
    count = text.count("\tchunk ")
    return (
        f"{count} chunks, {len(copies)} valid copies on {', '.join(sorted(set(copies))) or 'none'}"
    )


BACKEND = FilesystemBackend(
    Moosefs, "chunks on several servers, by mfsmount",
    fstypes=frozenset({"fuse", "fuse.mfs*"}), source="mfs#*", magic=frozenset({0x65735546}),
)  # fmt: skip
