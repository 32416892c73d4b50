"""What network filesystems share: the facts of a mount, and the node's network interfaces."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator, Mapping

from iobench.core.cases import Scalar
from iobench.core.protocols import Crossed, Filesystem
from iobench.core.records import IoCounters
from iobench.host.mounts import MountInfo
from iobench.host.probes import read

SYS_NET = Path("/sys/class/net")
SYS_INFINIBAND = Path("/sys/class/infiniband")
ARPHRD_INFINIBAND = "32"  # IP over InfiniBand: its bytes are in the port's counters as well
WORD_BYTES = 4  # port_rcv_data counts words of four bytes
#: Name of the counter of a node's interfaces, and what it is called.
RECEIVED = "network_received_bytes"
NETWORK = "bytes received by this node's network interfaces: everybody's"


class NetworkFilesystem(Filesystem):
    """A mount of servers.  Nothing of its own counts: the node's network interfaces do.

    ``control``: how its client's cache is controlled, and what cannot be done; ``locks``: who
    keeps to them.
    """

    control = (
        "posix_fadvise empties the page cache, file by file; servers' caches cannot be emptied"
    )
    locks = "not known"

    def __init__(self, *, mount: MountInfo) -> None:
        self.mount = mount

    def describe(self, path: Path) -> Mapping[str, Scalar]:
        """Return the mount's facts, what is known of the data's layout, and the client's caches."""
        facts: Dict[str, Scalar] = dict(self.mount.facts())
        if ahead := read(Path("/sys/class/bdi", self.mount.device, "read_ahead_kb")):
            facts["read_ahead_kb"] = int(ahead)
        facts.update(self.layout(path))
        for name, nbytes in self.caches().items():
            facts[f"client_cache_{name}_bytes"] = nbytes
        return {**facts, "locks": self.locks, "cache_control": self.control}

    def layout(self, path: Path) -> Mapping[str, Scalar]:
        """Return facts of this filesystem alone."""
        return {}

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return what the node's interfaces received."""
        return interfaces()

    def crossed(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return what the node received: nothing counts this mount alone."""
        return counted(moved, RECEIVED, NETWORK, "no network interface of this node counts")

    def cold(self) -> str:
        """Return "": fadvise evicts from the page cache."""
        return ""

    def caches(self) -> Mapping[str, int]:
        """Return {}: the client keeps data in the page cache alone."""
        return {}


def counted(moved: Mapping[str, int], name: str, words: str, absent: str) -> Crossed:
    """Return the difference of a counter of the whole mount, or ``absent``, why there is none."""
    if name not in moved:
        return Crossed(None, absent)
    if moved[name] < 0:
        return Crossed(
            None, f"{words}: it began again meanwhile (mounted anew, or options changed)"
        )
    return Crossed(moved[name], words, whole=True)


def interfaces() -> Dict[str, int]:
    """Return bytes received by the hardware interfaces of this network namespace; {} without one.

    Loopback, bridges and bonds are left out: they count what others count.
    """
    found = list(_received())
    return {RECEIVED: sum(found)} if found else {}


def _received() -> Iterator[int]:
    for folder in SYS_NET.glob("*"):
        if (folder / "device").exists() and read(folder / "type") != ARPHRD_INFINIBAND:
            yield int(read(folder / "statistics" / "rx_bytes") or 0)
    for port in SYS_INFINIBAND.glob("*/ports/*/counters/port_rcv_data"):
        if value := read(port):
            yield int(value) * WORD_BYTES
