"""Lustre: files striped over object storage targets, by the kernel's client."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Tuple

from iobench.backends.filesystems._network import NETWORK, RECEIVED, NetworkFilesystem, counted
from iobench.backends.filesystems._network import interfaces as network_interfaces
from iobench.core.cases import Scalar
from iobench.core.errors import DatasetError
from iobench.core.members import FilesystemBackend
from iobench.core.protocols import Crossed
from iobench.core.records import IoCounters
from iobench.core.striping import Striping
from iobench.host.mounts import MountInfo
from iobench.host.probes import ask, read

#: Where a client shows its parameters and counters: older versions in /proc, newer ones in both.
TREES = (Path("/sys/kernel/debug/lustre"), Path("/proc/fs/lustre"), Path("/sys/fs/lustre"))
READ = "targets_read_bytes"
WORDS = "read_bytes of this client's OSTs and MDTs (osc.*.stats, mdc.*.stats)"
#: Parameters of the client that move results.
PARAMETERS = ("max_read_ahead_mb", "max_read_ahead_per_file_mb", "statahead_max")
_SUM = re.compile(r"^read_bytes\s+\d+ samples \[bytes\] \d+ \d+ (\d+)", re.M)
#: A folder's keys have no ``lmm_`` before them.
_KEY = re.compile(r"^[\s-]*(?:lmm_)?(\w+):[ \t]*(\S.*)?$", re.M)
_OST = re.compile(r"l_ost_idx:\s*(\w+)|^\s+(\d+)\s+\d+\s+0x[0-9a-f]+\s+\S+\s*$", re.M)
#: Components that hold nothing that a reader gets, as long as all targets are there.
_UNREAD = re.compile(r"^[\s-]*lcme_flags:.*\b(parity|stale)\b", re.M)
_DF = re.compile(r"^(\S+)_UUID\s.*?(\d+)% .*\[OST:(\d+)\]", re.M)


class Lustre(NetworkFilesystem):
    """A mount.  What the servers' targets sent is counted apart of what applications read."""

    control = (
        "posix_fadvise empties the page cache; `lctl set_param ldlm.namespaces.*.lru_size=clear` "
        "(root) empties it for every user of this node and is not used; servers' caches cannot be "
        "emptied"
    )

    def __init__(self, *, mount: MountInfo) -> None:
        super().__init__(mount=mount)
        self._fsname = mount.source.rpartition(":/")[2].partition("/")[0]

    @property
    def locks(self) -> str:  # type: ignore[override]
        """Who keeps to flock, by the mount's options."""
        words = {"flock": "shared by all clients", "localflock": "of this host alone"}
        words["noflock"] = "none: flock fails"
        return next(
            (words[o] for o in self.mount.super_options if o in words), "not in the options"
        )

    def layout(self, path: Path) -> Mapping[str, Scalar]:
        """Return layout, fill of the targets, and the client's read-ahead."""
        facts: Dict[str, Scalar] = {"lustre_fsname": self._fsname}
        found, text = _getstripe(path)
        facts.update(found or {"layout": f"not known: {text}"})
        status, text = ask(["lfs", "df", str(self.mount.mount_point)])
        facts.update({} if status else fill(text))
        instance = self._instance()
        for name in PARAMETERS:
            values = [read(tree / "llite" / instance / name) for tree in TREES if instance]
            facts.update({f"llite_{name}": value for value in values if value})
        return facts

    def stripe(self, folder: Path, wanted: Striping) -> None:
        """Set the folder's default layout, in place of one with components."""
        words = {"-c": wanted.count, "-S": wanted.bytes, "-p": wanted.pool}
        options = [part for key, value in words.items() if value for part in (key, str(value))]
        status, text = ask(["lfs", "setstripe", *options, str(folder)])
        if status:
            raise DatasetError(text)

    def striping(self, path: Path) -> Striping:
        """Return the layout of a file, or the default one of a folder."""
        found, _ = _getstripe(path)
        count, size = found.get("stripe_count"), found.get("stripe_size")
        return Striping(
            count if isinstance(count, int) else 0,
            size if isinstance(size, int) else 0,
            str(found.get("pool", "")),
        )

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return what this mount's targets sent; where only root may read that, the node's bytes.

        ``llite.*.stats`` would not do: it counts what applications read, cached or not.
        """
        texts = list(self._target_stats())
        return {READ: sum(map(read_sum, texts))} if texts else network_interfaces()

    def crossed(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return what the targets sent, else what the node received."""
        if READ in moved:
            return counted(moved, READ, WORDS, "")
        return counted(moved, RECEIVED, NETWORK, "only root may read osc.*.stats here")

    def _target_stats(self) -> Iterator[str]:
        """Yield the counters of each target of this mount."""
        instance = self._instance().rpartition("-")[2]
        if not instance:
            return
        for kind in ("osc", "mdc"):
            name = f"{self._fsname}-*-{kind}-{instance}"
            found = [read(file) for tree in TREES for file in tree.glob(f"{kind}/{name}/stats")]
            if not any(found):
                status, text = ask(["lctl", "get_param", "-n", f"{kind}.{name}.stats"])
                found = [] if status else [text]
            yield from filter(None, found)

    def _instance(self) -> str:
        """Return the mount's name among the client's, FSNAME-ADDRESS; "" where it is not known."""
        names = {p.name for tree in TREES for p in tree.glob(f"llite/{self._fsname}-*")}
        if len(names) == 1:
            return names.pop()
        status, text = ask(["lfs", "getname", self.mount.mount_point])
        return "" if status else text.split()[0]


def _getstripe(path: Path) -> Tuple[Dict[str, Scalar], str]:
    """Return (facts of the layout, "") or ({}, what is wrong)."""
    folder = ["-d"] if path.is_dir() else []
    status, text = ask(["lfs", "getstripe", "-y", *folder, str(path)])
    found = {} if status else striped(text)
    return found, "" if found else text if status else "lfs getstripe -y"


def read_sum(text: str) -> int:
    """Return the sum of ``read_bytes`` over all statistics in a text; one never read has none."""
    return sum(int(match) for match in _SUM.findall(text))


def striped(text: str) -> Dict[str, Scalar]:
    """Return facts of what `lfs getstripe -y` prints, in its three shapes; {} for anything else.

    Of a composite layout (PFL) those of its last component that has objects and is read from, not
    parity or a stale mirror, and how many components there are.  Overstriped files have several
    objects on a target, so targets are counted, not stripes.
    """
    parts = re.split(r"^(?=[\s-]*lcme_id:)", text, flags=re.M)
    components = [(part, _component(part)) for part in (parts[1:] or parts)]
    known = [c for _, c in components if c]
    if not known:
        return {}
    read_from = [c for part, c in components if c.get("osts_of_file") and not _UNREAD.search(part)]
    facts = read_from[-1] if read_from else known[-1]
    if len(parts) > 1:
        facts = {**facts, "layout_components": len(known)}
        if dom := next((c for c in known if c["stripe_pattern"] == "mdt"), None):
            facts["data_on_mdt_bytes"] = dom.get("extent_end", "")
    return facts


def _component(text: str) -> Dict[str, Scalar]:
    keys = dict(_KEY.findall(text))
    if "stripe_count" not in keys:
        return {}
    osts = {int(a or b, 0) for a, b in _OST.findall(text)}
    facts: Dict[str, Scalar] = {
        "stripe_count": int(keys["stripe_count"]),
        "stripe_size": int(keys["stripe_size"]) if "stripe_size" in keys else "default",
        "stripe_pattern": keys.get("pattern", "raid0"),
        "osts_of_file": len(osts),
    }
    if pool := keys.get("pool"):
        facts["pool"] = pool
    if end := re.search(r"e_end:\s*(\S+)", text):
        facts["extent_end"] = end[1]
    return facts


def fill(text: str) -> Dict[str, Scalar]:
    """Return facts of what `lfs df` prints: targets, those that are inactive, the fullest one."""
    used: List[int] = [int(match[2]) for match in _DF.finditer(text)]
    inactive = len(re.findall(r"^OST\w+\s+: inactive device", text, re.M))
    if not used:
        return {}
    return {"osts": len(used), "osts_inactive": inactive, "ost_fullest_percent": max(used)}


BACKEND = FilesystemBackend(
    Lustre, "files striped over storage targets", fstypes=frozenset({"lustre"}),
    magic=frozenset({0x0BD00BD0}),
)  # fmt: skip
