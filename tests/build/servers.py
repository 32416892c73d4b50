"""Servers of a test's own in a network namespace, and what clients and servers share here."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Iterable, Iterator, List, Protocol, Sequence, Tuple

from iobench.host import page_cache
from iobench.host.agent import Agent
from tests.build.disks import run, unmount


@contextlib.contextmanager
def network(prefix: str) -> Iterator[Tuple[str, str]]:
    """Make a network namespace; yield its name and address; its processes end with it.

    From outside the address is unreachable: nothing that is sent there leaves the machine.
    """
    own = os.getpid()
    name, address = f"{prefix}{own}", f"10.{77 + own % 100}.{own // 100 % 250}.1"
    refused = ("unreachable", f"{address}/32")
    run("ip", "netns", "add", name)
    run("ip", "route", "add", *refused)
    try:
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "addr", "add", f"{address}/32", "dev", "lo")
        yield name, address
    finally:
        _end(name)
        run("ip", "route", "del", *refused)
        run("ip", "netns", "del", name)


def inside(namespace: str, *argv: str) -> str:
    """Run a command in a network; ``ip netns exec`` would hide its mounts."""
    return run("nsenter", f"--net=/run/netns/{namespace}", *argv)


def pids(namespace: str) -> List[int]:
    """Return the processes in a network."""
    return [int(pid) for pid in run("ip", "netns", "pids", namespace).split()]


def program(pid: int) -> str:
    """Return the name of a process's program."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


def evict(folders: Iterable[Path]) -> None:
    """Drop the servers' files from the page cache, which client and servers share here."""
    for folder in folders:
        for path in filter(Path.is_file, folder.rglob("*")):
            fd = os.open(path, os.O_RDONLY)
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


class Servers(Protocol):
    """A filesystem whose servers run on this machine."""

    def evict_servers(self) -> None:
        """Drop the servers' files from the page cache."""


class Evicting(Agent):
    """Evicts the servers' page cache with the client's, which no product could do."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def evict(self, files: Sequence[Path]) -> None:  # type: ignore[override]
        page_cache.evict(files)
        self._servers.evict_servers()


def detach(mount: Path) -> None:
    """Take the mount away; lazily where its daemon has died."""
    if os.path.ismount(mount):
        unmount(mount)
    elif f" {mount} " in Path("/proc/self/mounts").read_text():
        run("umount", "--lazy", str(mount))


def _end(namespace: str) -> None:
    """End every process of the namespace: they are the fixture's own."""
    for number in (15, 9):
        for pid in pids(namespace):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        for _ in range(100):
            if not pids(namespace):
                return
            time.sleep(0.05)
