"""A folder of another host, mounted with sshfs: a host of tests/build/hosts.py and its disk.

Debian: sshfs, and what the hosts need.  Needs root.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Iterator

from iobench.host.probes import fields, read
from tests.build.disks import disk, run
from tests.build.hosts import Host, hosts
from tests.build.servers import detach, evict

DISK_BYTES = 512 << 20  # sparse


class Sshfs:
    """A folder of ``host``; ``export``: where it has the folder, ``mount``: where a client has."""

    def __init__(self, folder: Path, host: Host) -> None:
        self._host, self._ssh = host, folder / "disk" / "ssh_config"
        self.export, self.mount = folder / "disk" / "export", folder / "mount"

    def start(self, *options: str) -> None:
        """Mount it, with ``options`` of sshfs: in the host's network, but seen out here."""
        for made in (self.export, self.mount):
            made.mkdir()
        words = [word for option in options for word in ("-o", option)]
        source = f"{self._host.address}:{self.export}"
        client = ["sshfs", source, str(self.mount), "-F", str(self._ssh), *words]
        run("nsenter", "-t", str(self._host.pid), "-n", "--", *client)

    def evict_servers(self) -> None:
        """Drop the host's files from the page cache, which it shares with the client here."""
        evict([self.export])

    def served(self) -> int:
        """Return the bytes that the host's server has read: of files, and clients' requests."""
        pids = [p for p, words in self._host.processes().items() if "sftp-server" in words]
        return sum(int(fields(read(f"/proc/{pid}/io"))["rchar"]) for pid in pids)


@contextlib.contextmanager
def sshfs(*options: str) -> Iterator[Sshfs]:
    """Mount a folder of another host; what was begun is undone, also after a failure."""
    with contextlib.ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="iobench-ss-")))
        undo.enter_context(disk(folder / "disk.image", folder / "disk", DISK_BYTES))
        (host,) = undo.enter_context(hosts(folder / "disk", 1)).hosts
        made = Sshfs(folder, host)
        undo.callback(detach, made.mount)
        made.start(*options)
        yield made
