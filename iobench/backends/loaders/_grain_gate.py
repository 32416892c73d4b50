"""Holds Grain's worker processes back until the measured loop begins: start-up stays apart."""

from __future__ import annotations

import functools
import os
import select
import struct
import tempfile
from typing import Any, List

from iobench.core import registry, transforms
from iobench.core.errors import BackendUnavailable

_START_S = 120.0  # in which the worker processes must be up
_NUMBER = struct.Struct("q")


class PipeGate:
    """Two named pipes: what Grain's workers are given is pickled, and no semaphore can be.

    ``enter``: for ``mp_prefetch`` as ``worker_init_fn``; nothing of the dataset is opened before.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._folder = tempfile.TemporaryDirectory(prefix="iobench-grain-")
        paths = [os.path.join(self._folder.name, name) for name in ("up", "go")]
        for path in paths:
            os.mkfifo(path)
        self._up, self._go = (os.open(path, os.O_RDWR) for path in paths)
        self._opened = False
        self.enter = functools.partial(_enter, *paths)
        #: The processes that have come up.
        self.processes: List[int] = []

    def wait_up(self) -> None:
        """Return when all workers stand at the gate.

        Raises BackendUnavailable when they do not come up.
        """
        while len(self.processes) < self._workers:
            if not select.select([self._up], [], [], _START_S)[0]:
                raise BackendUnavailable(
                    f"the grain loader's {self._workers} worker processes were not up after "
                    f"{_START_S:.0f} s: use fewer, or look for what blocks new processes here"
                )
            self.processes += _NUMBER.unpack(os.read(self._up, _NUMBER.size))

    def open(self) -> None:
        """Let the workers begin.  Idempotent."""
        if not self._opened:
            self._opened = True
            os.write(self._go, bytes(self._workers))

    def close(self) -> None:
        """Remove the pipes.  Idempotent."""
        if self._up >= 0:
            os.close(self._up)
            os.close(self._go)
            self._up = -1
        self._folder.cleanup()


def _enter(up: str, go: str, *of_grain: Any) -> None:
    for axis in ("formats", "decoders"):
        registry.names(axis)  # plug-ins can be imported from now on: what is unpickled next may be
    transforms.single_thread()
    with open(up, "wb", buffering=0) as pipe:
        pipe.write(_NUMBER.pack(os.getpid()))
    with open(go, "rb", buffering=0) as pipe:
        pipe.read(1)
