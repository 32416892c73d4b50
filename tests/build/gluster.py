"""A GlusterFS volume of a test's own: servers, bricks and client on this machine, and all undone.

The servers run in a network namespace of their own; the bricks are folders of an ext4 in a file,
attached with direct I/O.  Debian: glusterfs-server, glusterfs-client, iproute2.  Needs root.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Iterator, List, Mapping

from iobench.backends.filesystems import glusterfs
from tests.build.disks import disk
from tests.build.servers import detach, evict, inside, network, pids, program

#: One volume at a time in a process; processes beside each other have their own.
NAME = "iobench-test"
BRICKS_BYTES = 1 << 30  # sparse
BLKIO, MEMORY = Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup/memory")
LOGS = Path("/var/log/glusterfs/bricks")
#: Below a mount: the client's translators, a folder each.
GRAPH = ".meta/graphs/active"
CONFIG = """volume management
    type mgmt/glusterd
    option working-directory {folder}/work
    option run-directory {folder}/run
    option glusterd-sockfile {folder}/glusterd.socket
    option transport-type socket
    option transport.socket.bind-address {address}
    option transport.address-family inet
    option transport.socket.keepalive-time 10
    option transport.socket.keepalive-interval 2
    option ping-timeout 0
end-volume
"""


class Gluster:
    """A started volume; ``mount``: where its client shows it."""

    def __init__(self, folder: Path, namespace: str, address: str) -> None:
        self._folder, self._namespace, self._address = folder, namespace, address
        self.mount = folder / "mount"
        self.bricks = [folder / "disk" / f"brick{i}" for i in range(2)]
        self.loop = ""  # device below the bricks
        self._wide = len(self.bricks)  # on so many of them is a folder

    def inside(self, *argv: str) -> str:
        """Run a command in the servers' network."""
        return inside(self._namespace, *argv)

    def ask(self, *words: str) -> str:
        """Return what the command ``gluster`` answers."""
        socket = f"--glusterd-sock={self._folder}/glusterd.socket"
        return self.inside("gluster", "--mode=script", socket, *words)

    def start(self, options: Mapping[str, str]) -> None:
        (self._folder / "glusterd.vol").write_text(
            CONFIG.format(folder=self._folder, address=self._address)
        )
        logs = ["-l", f"{self._folder}/glusterd.log", "-L", "WARNING"]
        pid = ["-p", f"{self._folder}/glusterd.pid"]
        try:
            self.inside("glusterd", "-f", f"{self._folder}/glusterd.vol", *pid, *logs)
        except AssertionError as error:  # it says why in its log alone
            log = (self._folder / "glusterd.log").read_text()
            raise AssertionError(f"{error}\n{log}") from None
        bricks = [f"{self._address}:{brick}" for brick in self.bricks]
        self.ask("volume", "create", NAME, *bricks, "force")
        for option, value in options.items():
            self.ask("volume", "set", NAME, option, value)
        self._wide = int(options.get("cluster.subvols-per-directory", self._wide))
        self.ask("volume", "start", NAME)
        self.attach()

    def attach(self) -> None:
        """Start the client, with nothing in its memory."""
        self._client(self.mount)

    @contextlib.contextmanager
    def second_client(self) -> Iterator[Path]:
        """Start another client, as another node has one; yield where it shows the volume."""
        mount = self._folder / "second"
        mount.mkdir()
        try:
            self._client(mount)
            yield mount
        finally:
            detach(mount)

    def _client(self, mount: Path) -> None:
        volume = [f"--volfile-server={self._address}", f"--volfile-id={NAME}"]
        log = f"--log-file={self._folder}/{mount.name}.log"
        self.inside("glusterfs", *volume, log, str(mount))
        self._connected(mount)

    def _connected(self, mount: Path) -> None:
        """Wait until a client has all bricks, and its new folders are on as many as wanted."""
        found: List[str] = []
        for _ in range(100):
            with contextlib.suppress(OSError):  # EBADF while the graph changes
                found = [p.read_text() for p in (mount / GRAPH).glob(f"{NAME}-client-*/private")]
                connected = [text for text in found if "connected = 1" in text]
                if len(connected) == len(self.bricks) and self._spread(mount) == self._wide:
                    return
            time.sleep(0.1)
        raise AssertionError(f"the client is not connected to all bricks: {found}")

    def _spread(self, mount: Path) -> int:
        """Return on how many bricks a folder is that the client makes now."""
        folder = Path(tempfile.mkdtemp(prefix=".spread-", dir=mount))
        try:
            return glusterfs.spread(os.getxattr(folder, glusterfs.PLACEMENT).decode())
        finally:
            folder.rmdir()

    def set(self, option: str, value: str) -> None:
        """Switch a translator of the client on or off and wait until the client follows.

        It does by another graph, which can be late: what the one before showed tells nothing.
        """
        if self.ask("volume", "get", NAME, option).split()[-1] == value:
            return
        active = self.mount / GRAPH
        before = os.readlink(active)
        self.ask("volume", "set", NAME, option, value)
        translator = active / f"{NAME}-{option.rpartition('.')[2]}"
        for _ in range(200):
            with contextlib.suppress(OSError):
                if os.readlink(active) != before and translator.exists() == (value == "on"):
                    self._connected(self.mount)
                    return
            time.sleep(0.1)
        raise AssertionError(f"the client does not follow {option} {value}")

    def evict_servers(self) -> None:
        """Drop the bricks' files from the page cache, which client and servers share here."""
        evict(self.bricks)

    @contextlib.contextmanager
    def throttled(self, **limits: int) -> Iterator[None]:
        """Slow the bricks' disk for their servers: ``read_bps_device``, ``read_iops_device``."""
        device = Path("/sys/class/block", Path(self.loop).name, "dev").read_text().strip()
        files = {f"blkio.throttle.{name}": f"{device} {value}" for name, value in limits.items()}
        with self._grouped(BLKIO, files):
            yield

    @contextlib.contextmanager
    def limited(self, nbytes: int) -> Iterator[None]:
        """Let the bricks' servers have so many bytes of memory from now on, pages of files too."""
        self.evict_servers()  # what has been read before counts elsewhere
        with self._grouped(MEMORY, {"memory.limit_in_bytes": str(nbytes)}):
            yield

    @contextlib.contextmanager
    def _grouped(self, hierarchy: Path, files: Mapping[str, str]) -> Iterator[None]:
        """Keep the bricks' servers in a control group of their own with these settings."""
        group = hierarchy / f"{NAME}-{os.getpid()}"
        group.mkdir()
        servers = self.servers
        try:
            for name, value in files.items():
                (group / name).write_text(value)
            for pid in servers:
                (group / "cgroup.procs").write_text(str(pid))
            yield
        finally:
            for pid in servers:
                (hierarchy / "cgroup.procs").write_text(str(pid))
            group.rmdir()

    @property
    def servers(self) -> List[int]:
        """Processes of the bricks."""
        return [pid for pid in pids(self._namespace) if program(pid) == "glusterfsd"]

    @property
    def client(self) -> int:
        """The process that serves the mount."""
        (pid,) = [
            pid for pid in pids(self._namespace)
            if str(self.mount).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        ]  # fmt: skip
        return pid

    def fill(self) -> None:
        """Leave no byte free on the bricks' disk."""
        there = os.statvfs(self._folder / "disk")
        with open(self._folder / "disk/ballast", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, there.f_bavail * there.f_frsize - (1 << 20))

    def served(self) -> int:
        """Return the bytes that the bricks have read for clients, since the volume started."""
        for _ in range(20):  # a busy brick's answer can be missing
            text = self.ask("volume", "profile", NAME, "info", "cumulative")
            read = re.findall(r"Data Read: (\d+) bytes", text)
            if len(read) == len(self.bricks):
                return sum(map(int, read))
            time.sleep(0.5)
        raise AssertionError(f"not every brick says what it has read: {text}")


@contextlib.contextmanager
def gluster(**options: str) -> Iterator[Gluster]:
    """Start a volume on this machine; what was begun is undone, also after a failure.

    ``options``: of the volume, set before it starts; ``_`` stands for ``-`` and ``__`` for ``.``.
    """
    with contextlib.ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="iobench-gl-")))
        for name in ("work", "run", "mount"):
            (folder / name).mkdir()
        loop = undo.enter_context(disk(folder / "disk.image", folder / "disk", BRICKS_BYTES))
        namespace, address = undo.enter_context(network("iobgl"))
        made = Gluster(folder, namespace, address)
        made.loop = loop
        undo.callback(detach, made.mount)
        undo.callback(_remove_logs, folder)
        for brick in made.bricks:
            brick.mkdir()
        made.start({k.replace("__", ".").replace("_", "-"): v for k, v in options.items()})
        made.ask("volume", "profile", NAME, "start")
        yield made


def _remove_logs(folder: Path) -> None:
    for log in LOGS.glob(f"{str(folder).strip('/').replace('/', '-')}-*"):
        log.unlink()
