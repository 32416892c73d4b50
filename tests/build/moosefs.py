"""A MooseFS of a test's own: master, two chunk servers and client on this machine, all undone.

Debian: moosefs-master, moosefs-chunkserver, moosefs-client, iproute2.  Needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Iterator, List

from iobench.host.probes import fields, read
from tests.build.disks import disk
from tests.build.servers import detach, evict, inside, network, pids, program

EMPTY = Path("/var/lib/mfs/metadata.mfs.empty")
DISK_BYTES = 2 << 30  # sparse; a chunk server leaves a part of it free
MASTER = """WORKING_USER = root
WORKING_GROUP = root
DATA_PATH = {folder}/master
EXPORTS_FILENAME = {folder}/exports.cfg
TOPOLOGY_FILENAME = {folder}/topology.cfg
MATOML_LISTEN_HOST = {address}
MATOCS_LISTEN_HOST = {address}
MATOCL_LISTEN_HOST = {address}
NICE_LEVEL = 0
DISABLE_OOM_KILLER = 0
REPLICATIONS_DELAY_INIT = 0
"""
CHUNKS = """WORKING_USER = root
WORKING_GROUP = root
DATA_PATH = {folder}/server{i}
HDD_CONF_FILENAME = {folder}/hdd{i}.cfg
HDD_LEAVE_SPACE_DEFAULT = 64MiB
BIND_HOST = {address}
MASTER_HOST = {address}
CSSERV_LISTEN_HOST = {address}
CSSERV_LISTEN_PORT = 950{i}
NICE_LEVEL = 0
DISABLE_OOM_KILLER = 0
"""
SERVERS = (1, 2)


class MooseFS:
    """A mounted filesystem; ``mount``: where its client shows it."""

    def __init__(self, folder: Path, namespace: str, address: str) -> None:
        self._folder, self._namespace, self._address = folder, namespace, address
        self.mount = folder / "mount"
        self.disks = [folder / "disk" / f"hdd{i}" for i in SERVERS]

    def start(self) -> None:
        folder, address = self._folder, self._address
        for name in ("master", "mount", *(f"server{i}" for i in SERVERS)):
            (folder / name).mkdir()
        shutil.copy(EMPTY, folder / "master/metadata.mfs")
        (folder / "exports.cfg").write_text("* / rw,alldirs,admin,maproot=0:0\n")
        (folder / "topology.cfg").touch()
        (folder / "master.cfg").write_text(MASTER.format(folder=folder, address=address))
        inside(self._namespace, "mfsmaster", "-c", str(folder / "master.cfg"), "start")
        for i, hdd in zip(SERVERS, self.disks):
            hdd.mkdir()
            (folder / f"hdd{i}.cfg").write_text(f"{hdd}\n")
            config = folder / f"server{i}.cfg"
            config.write_text(CHUNKS.format(folder=folder, address=address, i=i))
            inside(self._namespace, "mfschunkserver", "-c", str(config), "start")
        client = ["-H", address, "-o", f"mfserroronnospace,mfsnice=0,mfsproxy={address}"]
        inside(self._namespace, "mfsmount", str(self.mount), *client)
        self._await()

    def _await(self) -> None:
        """Wait until all servers have told the master of their room, and it tells the client.

        What is written before that has one copy, and is copied to the other server in the middle
        of a test.
        """
        probe = self.mount / ".probe"
        for _ in range(200):
            with contextlib.suppress(OSError):
                probe.write_bytes(b"x")
                copies = self.info(probe).count("status:VALID")
                probe.unlink()
                if copies == len(SERVERS) and os.statvfs(self.mount).f_bavail:
                    return
            time.sleep(0.1)
        raise AssertionError("not every chunk server took a byte")

    def info(self, file: Path) -> str:
        """Return what the servers' own tool says of a file's chunks."""
        return inside(self._namespace, "mfsfileinfo", str(file))

    def evict_servers(self) -> None:
        """Drop the chunks from the page cache, which client and servers share here."""
        evict(self.disks)

    def served(self) -> int:
        """Return the bytes that the chunk servers have written: to clients, but for some logs."""
        servers: List[int] = [p for p in pids(self._namespace) if program(p) == "mfschunkserver"]
        return sum(int(fields(read(f"/proc/{pid}/io"))["wchar"]) for pid in servers)


@contextlib.contextmanager
def moosefs() -> Iterator[MooseFS]:
    """Start a MooseFS on this machine; what was begun is undone, also after a failure."""
    with contextlib.ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="iobench-mfs-")))
        undo.enter_context(disk(folder / "disk.image", folder / "disk", DISK_BYTES))
        namespace, address = undo.enter_context(network("iobmf"))
        made = MooseFS(folder, namespace, address)
        undo.callback(detach, made.mount)
        made.start()
        yield made
