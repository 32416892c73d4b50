"""What the driver does to a node: one class, here for the driver's own node.

Every argument and result is a plain value, a dataclass or a context manager.  What
:class:`NodeAgent` names can be asked of any node: another one's agent answers by messages
(:mod:`iobench.host.remote_agent`).  Paths are the node's own.  Python 3.9.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, ContextManager, Iterable, Mapping, Optional, Protocol, Sequence

from iobench.core import registry
from iobench.core.cases import Extent, Options
from iobench.core.clock import clock, delay
from iobench.core.protocols import Crossed, Runtime
from iobench.core.records import IoCounters
from iobench.host import (
    columns,
    files,
    filesystems,
    fingerprint,
    fio,
    limits,
    mounts,
    page_cache,
    page_lock,
    probes,
    rivals,
    speed_noise,
    strace,
)
from iobench.host import freezer as turns
from iobench.host.fio import FioResult
from iobench.host.freezer import Freezer
from iobench.host.page_cache import Residency
from iobench.host.stacked import caches_of
from iobench.host.strace import Trace

__all__ = ["LOCAL", "Agent", "FioResult", "Freezer", "NodeAgent", "Residency", "Trace"]


class NodeAgent(Protocol):
    """What a trial has done on each of its nodes, whichever they are."""

    def evict(self, files: Iterable[Path]) -> None: ...

    def warm(self, files: Iterable[Path]) -> None: ...

    def lock(self, files: Sequence[Path], *, resident: bool = False) -> ContextManager[str]: ...

    def check_warmable(self, nbytes: int, files: Sequence[Path] = ()) -> None: ...

    def residency(self, files: Iterable[Path]) -> Residency: ...

    def set_fraction(
        self,
        samples: Sequence[Sequence[Extent]],
        fraction: float,
        seed: int,
        files: Iterable[Path] = (),
    ) -> Residency: ...

    def drop_caches(self, *, allowed: bool, names: bool = False) -> None: ...

    def fio(
        self,
        folder: Path,
        options: Mapping[str, str],
        jobs: Sequence[Mapping[str, str]],
        *,
        time_limit_s: float,
        enter: Sequence[str] = (),
    ) -> FioResult: ...

    def mount(self, path: Path) -> Mapping[str, Any]: ...

    def unseen(self, path: Path) -> str: ...

    def counters(self, path: Path) -> Mapping[str, int]: ...

    def crossed(self, path: Path, io: IoCounters, moved: Mapping[str, int]) -> Crossed: ...

    def others(self, path: Path) -> Optional[float]: ...

    def caches(self, path: Path) -> Mapping[str, int]: ...

    def move_columns(self, source: str, target: str, ranks: Sequence[int]) -> None: ...

    def stop(self, runtime: str, options: Options, name: str) -> None: ...


#: How long a mount is watched for the traffic of others, seconds.
OTHERS_S = 0.25


class Agent:
    """Acts on the driver's own node; raises CacheStateError, BackendUnavailable, TrialFailed."""

    evict = staticmethod(page_cache.evict)
    warm = staticmethod(page_cache.warm)
    lock = staticmethod(page_lock.lock)
    check_warmable = staticmethod(page_cache.check_warmable)
    residency = staticmethod(page_cache.residency)
    set_fraction = staticmethod(page_cache.set_fraction)
    drop_caches = staticmethod(page_cache.drop_caches)
    memory_bytes = staticmethod(page_cache.effective_memory_bytes)
    mount = staticmethod(filesystems.describe_mount)
    stack = staticmethod(mounts.stack)
    unseen = staticmethod(filesystems.unseen)
    same_mount = staticmethod(mounts.same_mount)
    check_limits = staticmethod(limits.check)
    group = staticmethod(limits.group)
    killed = staticmethod(limits.killed)
    killed_since = staticmethod(limits.killed_since)
    read_again = staticmethod(limits.read_again)
    processes = staticmethod(strace.processes)
    trace = staticmethod(strace.trace)
    speed_noise = staticmethod(speed_noise.measure)
    freezer = staticmethod(turns.freezer)
    family = staticmethod(turns.family)
    fio = staticmethod(fio.run)
    name = staticmethod(socket.gethostname)
    job = staticmethod(probes.job)
    announced = staticmethod(rivals.announced)
    alone_with = staticmethod(rivals.alone_with)
    rivals = staticmethod(rivals.seen)
    facts = staticmethod(fingerprint.facts)
    move_columns = staticmethod(columns.move)
    copy = staticmethod(files.copy)
    settle = staticmethod(files.settle)
    absent = staticmethod(probes.absent)

    def lacks(self, runtime: str, options: Options, image: str) -> str:
        """Return why a runtime cannot start ``image`` on this node, "" where it can."""
        made: Runtime = registry.load("runtimes", runtime).make(**options)
        return made.available() or made.lacks(image)

    def stop(self, runtime: str, options: Options, name: str) -> None:
        """End what a killed start of that name may have left on this node."""
        registry.load("runtimes", runtime).make(**options).stop(name)

    def cold(self, path: Path) -> str:
        """Return why files on the mount under ``path`` are never cold, "" where they can be."""
        return filesystems.filesystem_for(path)[1].cold()

    def caches(self, path: Path) -> Mapping[str, int]:
        """Return what the client of the mount under ``path`` keeps in memory of its own, bytes."""
        return dict(caches_of(filesystems.filesystem_for(path)[1]))

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return the byte counters of the mount under ``path``; {} when it has none."""
        return dict(filesystems.filesystem_for(path)[1].counters(path))

    def crossed(self, path: Path, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return what came from the storage under ``path``, by ``io`` of our processes together or
        by ``moved``, the differences of the mount's counters."""
        return filesystems.filesystem_for(path)[1].crossed(io, moved)

    def others(self, path: Path) -> Optional[float]:
        """Return the bytes per second of others over the mount under ``path``, now.

        None where our own processes' bytes are counted apart.  While it waits, nothing of ours may
        use the mount.
        """
        filesystem = filesystems.filesystem_for(path)[1]
        before, begun = filesystem.counters(path), clock()
        if not filesystem.crossed(IoCounters(), dict.fromkeys(before, 0)).whole:
            return None
        delay(OTHERS_S)
        after, seconds = filesystem.counters(path), clock() - begun
        moved = {name: after[name] - n for name, n in before.items() if name in after}
        return (filesystem.crossed(IoCounters(), moved).nbytes or 0) / seconds


LOCAL = Agent()
