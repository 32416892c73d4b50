"""What the driver does to a node: one class, here for the driver's own node.

Every argument and result is a plain value, a dataclass or a context manager.  What
:class:`NodeAgent` names can be asked of any node: another one's agent answers by messages
(:mod:`iobench.host.remote_agent`).  Paths are the node's own.  Python 3.9.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, ContextManager, Iterable, Mapping, Optional, Protocol, Sequence, Tuple

from iobench.core.cases import Extent
from iobench.core.records import IoCounters
from iobench.host import (
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
from iobench.host.strace import Trace

__all__ = ["LOCAL", "Agent", "FioResult", "Freezer", "NodeAgent", "Residency", "Trace"]


class NodeAgent(Protocol):
    """What a trial has done on each of its nodes, whichever they are."""

    def evict(self, files: Iterable[Path]) -> None: ...

    def warm(self, files: Iterable[Path]) -> None: ...

    def lock(self, files: Sequence[Path]) -> ContextManager[str]: ...

    def check_warmable(self, nbytes: int) -> None: ...

    def residency(self, files: Iterable[Path]) -> Residency: ...

    def set_fraction(
        self,
        samples: Sequence[Sequence[Extent]],
        fraction: float,
        seed: int,
        files: Iterable[Path] = (),
    ) -> Residency: ...

    def drop_caches(self, *, allowed: bool) -> None: ...

    def mount(self, path: Path) -> Mapping[str, Any]: ...

    def unseen(self, path: Path) -> str: ...

    def counters(self, path: Path) -> Mapping[str, int]: ...

    def storage_bytes(self, path: Path, io: IoCounters) -> Tuple[Optional[int], str]: ...


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
    mount = staticmethod(mounts.describe_mount)
    stack = staticmethod(mounts.stack)
    unseen = staticmethod(mounts.unseen)
    same_mount = staticmethod(mounts.same_mount)
    check_limits = staticmethod(limits.check)
    group = staticmethod(limits.group)
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

    def cold(self, path: Path) -> str:
        """Return why files on the mount under ``path`` are never cold, "" where they can be."""
        return mounts.filesystem_for(path)[1].cold()

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return the byte counters of the mount under ``path``; {} when it has none."""
        return dict(mounts.filesystem_for(path)[1].counters(path))

    def storage_bytes(self, path: Path, io: IoCounters) -> Tuple[Optional[int], str]:
        """Return (bytes of ``io`` over the mount under ``path`` or None, counter's name)."""
        return mounts.filesystem_for(path)[1].storage_bytes(io)


LOCAL = Agent()
