"""GlusterFS: files on bricks of several servers, through its FUSE client.

The client shows itself below ``.meta`` in the root of the mount: what each connection to a brick
has received, and what the translators between page cache and bricks keep in memory.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Dict, List, Mapping

from iobench.backends.filesystems._network import NetworkFilesystem, counted
from iobench.core.cases import Scalar
from iobench.core.errors import DatasetError
from iobench.core.members import FilesystemBackend
from iobench.core.protocols import Crossed
from iobench.core.records import IoCounters
from iobench.core.striping import Striping
from iobench.host.mounts import whole_of
from iobench.host.probes import read

RECEIVED = "bricks_received_bytes"
#: Translator types that keep file data -> the line of ``private`` that says how much.
KEEPS = {
    "performance/io-cache": "cache_used",
    "performance/quick-read": "total_cache_used",
}
PLACEMENT, PLACEMENT_OF_USERS = "trusted.glusterfs.pathinfo", "glusterfs.pathinfo"
_TYPE = re.compile(r"^volume (\S+)\n\s+type (\S+)(.*?)^end-volume", re.M | re.S)
_RANGE = re.compile(r"\(\S+ (\d+) (\d+)\)")
_OPTION = re.compile(r"^\s+option (\S+) (.*)$", re.M)


class Glusterfs(NetworkFilesystem):
    """A volume.  Its translators io-cache and quick-read keep data in the client's memory."""

    locks = "shared by all clients; flock and POSIX locks share one space"
    control = (
        "posix_fadvise empties the page cache; io-cache and quick-read are emptied by mounting "
        "anew alone: switch performance.io-cache and performance.quick-read off"
    )

    @property
    def _graphs(self) -> Path:
        whole = whole_of(self.mount)
        return Path(whole.mount_point if whole else "/nowhere", ".meta", "graphs")

    def layout(self, path: Path) -> Mapping[str, Scalar]:
        """Return the volume's kind and bricks, the client's version, and where a file lies."""
        facts: Dict[str, Scalar] = {}
        facts.update(volume(read(self._graphs / "active" / "volfile")))
        if version := re.search(
            r'"Package Version": "(.*)"', read(self._graphs.parent / "version")
        ):
            facts["client_version"] = version[1]
        with contextlib.suppress(OSError):  # trusted: root alone; ENOMEM on dispersed volumes
            facts["layout"] = os.getxattr(path, PLACEMENT).decode(errors="replace").rstrip("\0 ")
        return facts

    def stripe(self, folder: Path, wanted: Striping) -> None:
        """Set nothing: a client cannot, and what new folders have is looked up alone.

        ``distribute.directory-spread-count`` is accepted by version 10, and changes nothing.
        """
        found = self.striping(folder)
        if not wanted.met_by(found):
            raise DatasetError(
                f"new folders have {found}, by its option cluster.subvols-per-directory, which is "
                "the administrator's; files are whole, and there are no pools"
            )

    def striping(self, path: Path) -> Striping:
        """Return over how many bricks the folder spreads its files."""
        text = b""
        for name in (PLACEMENT, PLACEMENT_OF_USERS):
            with contextlib.suppress(OSError):
                text = text or os.getxattr(path if path.is_dir() else path.parent, name)
        return Striping(spread(text.decode(errors="replace")))

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return what this client received from all bricks, in all graphs that it has had.

        A change of the volume's options starts a new graph, with connections of its own; while it
        comes up, a folder may not be listed (EBADF), and nothing is counted.
        """
        texts: List[str] = []
        with contextlib.suppress(OSError):
            graphs = [g for g in self._graphs.glob("*") if not g.is_symlink()]
            texts = [read(p) for g in graphs for p in [*g.glob("*-client-*/private")]]
        received = [int(state["total_bytes_read"]) for state in map(private, texts) if state]
        return {RECEIVED: sum(received)} if received else {}

    def crossed(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return what came from the bricks: nothing that the client kept is among it."""
        words = "total_bytes_read of the client's connections to the bricks (.meta)"
        absent = f"{self.mount.mount_point} does not show the client's .meta folder"
        return counted(moved, RECEIVED, words, absent)

    def caches(self) -> Mapping[str, int]:
        """Return what each translator that keeps data holds."""
        found: Dict[str, int] = {}
        graph = self._graphs / "active"
        for name, (kind, _) in translators(read(graph / "volfile")).items():
            if kind in KEEPS:
                state = assignments(read(graph / name / "private"))
                found[kind.rpartition("/")[2]] = int(state.get(KEEPS[kind], 0))
        return found


def translators(volfile: str) -> Dict[str, List]:  # type: ignore[type-arg]
    """Return name -> [type, options] of a graph's description."""
    return {m[1]: [m[2], dict(_OPTION.findall(m[3]))] for m in _TYPE.finditer(volfile)}


def volume(volfile: str) -> Dict[str, Scalar]:
    """Return facts of a graph: how files are spread, over which bricks; {} of an empty text."""
    graph = translators(volfile)
    bricks = [options for kind, options in graph.values() if kind == "protocol/client"]
    if not bricks:
        return {}
    kinds = [kind for kind, _ in graph.values()]
    servers = sorted({brick.get("remote-host", "") for brick in bricks})
    return {
        "volume_type": "+".join(sorted({k[8:] for k in kinds if k.startswith("cluster/")})),
        "bricks": len(bricks),
        "servers": ",".join(servers),
        "client_translators": ",".join(k[12:] for k in kinds if k.startswith("performance/")),
    }


def spread(pathinfo: str) -> int:
    """Return how many bricks have a range of names in a folder's pathinfo; 0: none is shown."""
    return sum(begin != end for begin, end in _RANGE.findall(pathinfo))


def private(text: str) -> Dict[str, str]:
    """Return the state of a connection to a brick; {} of another translator."""
    found = assignments(text) if text.startswith("[xlator.protocol.client.") else {}
    return found if "total_bytes_read" in found else {}


def assignments(text: str) -> Dict[str, str]:
    """Return the lines ``key = value``."""
    rows = (line.partition(" = ") for line in text.splitlines())
    return {key.strip(): value.strip() for key, separator, value in rows if separator}


BACKEND = FilesystemBackend(
    Glusterfs, "bricks of several servers, by its FUSE client",
    fstypes=frozenset({"fuse.glusterfs"}), magic=frozenset({0x65735546}),
)  # fmt: skip
