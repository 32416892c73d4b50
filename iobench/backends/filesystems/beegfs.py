"""BeeGFS: files striped over storage targets, by the kernel's client."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, Mapping, Sequence, Tuple

from iobench.backends.filesystems._network import NetworkFilesystem
from iobench.core.cases import Scalar
from iobench.core.errors import DatasetError
from iobench.core.members import FilesystemBackend
from iobench.core.striping import ALL, Striping
from iobench.host.probes import ask, read

PROC = Path("/proc/fs/beegfs")
#: Options of a pattern in version 7 and 8: targets, KiB in a row, number of the pool.
OPTIONS_7 = ("--numtargets={}", "--chunksize={}k", "--storagepoolid={}")
OPTIONS_8 = ("--num-targets={}", "--chunk-size={}KiB", "--pool={}")
NO_PROGRAM = 127
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
        found, text = _entry(path)
        return {**facts, **(found or {"layout": f"not known: {text}"})}

    def stripe(self, folder: Path, wanted: Striping) -> None:
        """Set the folder's pattern: root may, and users where the servers allow it."""
        if wanted.count == ALL:
            raise DatasetError("it knows no word for all targets: give their number")
        words = _options(OPTIONS_7, wanted)
        status, text = ask(["beegfs-ctl", "--setpattern", *words, str(folder)])
        if status == NO_PROGRAM:
            words = _options(OPTIONS_8, wanted)
            status, text = ask(["beegfs", "entry", "set", *words, str(folder)])
        if status:
            raise DatasetError(text)

    def striping(self, path: Path) -> Striping:
        """Return the pattern of a file, or of new files in a folder."""
        found, _ = _entry(path)
        pool = re.match(r"\w+", str(found.get("pool", "")))
        return Striping(
            int(found.get("stripe_count") or 0), units(str(found.get("stripe_size", ""))),
            pool[0] if pool else "",
        )  # fmt: skip

    def _config(self) -> Dict[str, str]:
        """Return the client's configuration; {} where several file systems are mounted."""
        configs = list(PROC.glob("*/config"))
        rows = (line.partition("=") for line in read(configs[0]).splitlines()) if configs else ()
        return {k.strip(): v.strip() for k, _, v in rows} if len(configs) == 1 else {}


def _entry(path: Path) -> Tuple[Dict[str, Scalar], str]:
    """Return (facts of the pattern, "") or ({}, what was answered)."""
    status, text = ask(["beegfs-ctl", "--getentryinfo", str(path)])
    if status:
        status, text = ask(["beegfs", "entry", "info", "--retro", str(path)])
    return {} if status else striped(text), text


def _options(forms: Sequence[str], wanted: Striping) -> List[str]:
    """Return the options of a command that set what is wanted.  Raises DatasetError."""
    if wanted.bytes % 1024:
        raise DatasetError(f"bytes = {wanted.bytes} is no whole number of KiB")
    values = (wanted.count, wanted.bytes >> 10, wanted.pool)
    return [form.format(value) for form, value in zip(forms, values) if value]


def units(size: str) -> int:
    """Return the bytes of a size as it prints them: 512k, 1M."""
    match = re.fullmatch(r"(\d+)([KMG]?)", size.upper())
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0


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
