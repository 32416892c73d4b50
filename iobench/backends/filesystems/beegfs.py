"""BeeGFS: files striped over storage targets, by the kernel's client."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, Mapping

from iobench.backends.filesystems._network import NetworkFilesystem
from iobench.core.cases import Scalar
from iobench.core.members import FilesystemBackend
from iobench.host.probes import ask, read

PROC = Path("/proc/fs/beegfs")
_TARGET = re.compile(r"^\s*\+ (\d+) @ (\S+) \[ID: \d+\]", re.M)


class Beegfs(NetworkFilesystem):
    """A mount.  The client counts no bytes, so the node's network interfaces have to."""

    control = (
        "posix_fadvise empties the page cache (tuneFileCacheType native); the buffers of the type "
        "buffered are small and of open files; servers' caches cannot be emptied"
    )

    @property
    def locks(self) -> str:  # type: ignore[override]
        """Who keeps to locks, by the client's configuration."""
        found = self._config().get("tuneUseGlobalFileLocks")
        words = {"1": "shared by all clients", "0": "of this host alone"}
        return words.get(found or "", "not known: tuneUseGlobalFileLocks is not shown")

    def layout(self, path: Path) -> Mapping[str, Scalar]:
        """Return the stripe pattern and the client's kind of cache."""
        facts: Dict[str, Scalar] = {}
        if kind := self._config().get("tuneFileCacheType"):
            facts["client_cache_type"] = kind
        status, text = ask(["beegfs-ctl", "--getentryinfo", str(path)])
        if status:
            status, text = ask(["beegfs", "entry", "info", "--retro", str(path)])
        found = {} if status else striped(text)
        return {**facts, **(found or {"layout": f"not known: {text}"})}

    def _config(self) -> Dict[str, str]:
        """Return the client's configuration; {} where several file systems are mounted."""
        configs = list(PROC.glob("*/config"))
        rows = (line.partition("=") for line in read(configs[0]).splitlines()) if configs else ()
        return {k.strip(): v.strip() for k, _, v in rows} if len(configs) == 1 else {}


def striped(text: str) -> Dict[str, Scalar]:
    """Return facts of what `beegfs-ctl --getentryinfo` (8.x: `beegfs entry info --retro`) prints.

    {} for anything else.  A folder has no targets, and the pattern of what is written there.
    """
    pattern = re.search(r"^\+ Type:\s*(\S+)", text, re.M)
    count = re.search(
        r"^\+ Number of storage targets: desired: (\d+)(?:; actual: (\d+))?", text, re.M
    )
    chunk = re.search(r"^\+ Chunksize:\s*(\S+)", text, re.M)
    if not (pattern and count and chunk):
        return {}
    facts: Dict[str, Scalar] = {
        "stripe_pattern": pattern[1],
        "stripe_count": int(count[2] or count[1]),
        "stripe_size": chunk[1].upper(),
    }
    targets = _TARGET.findall(text)
    if targets:
        facts["targets_of_file"] = ",".join(number for number, _ in targets)
        facts["servers"] = ",".join(sorted({server for _, server in targets}))
    if pool := re.search(r"^\+ Storage Pool:\s*(.+)$", text, re.M):
        facts["pool"] = pool[1]
    return facts


BACKEND = FilesystemBackend(
    Beegfs, "files striped over storage targets", fstypes=frozenset({"beegfs"}),
    magic=frozenset({0x19830326}),
)  # fmt: skip
