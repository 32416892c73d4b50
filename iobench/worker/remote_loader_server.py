"""Process that ``remote_loader`` starts: it runs one loader and hands its batches over.

    python -m iobench.worker.remote_loader_server CONNECTION AXIS=MEMBER ...

A message is a tuple whose first value is a word.  The client sends ``make`` (request, options),
``slots`` (shape; then the descriptor of their shared memory), ``begin``, ``next`` (the batch before
is no longer used) and ``close``.  The server sends ``ready`` (libraries are imported), ``made``
(batches in the loader's queue, whether they are in shared memory already), ``batch`` (the batch;
where its pixels are: a slot, ``FILE``, whose descriptor follows, or ``NOWHERE``; seconds at which
it was there, and sent), ``closed`` (counters of the loop, fingerprint) and ``error`` (the
exception's type, its message).
"""

from __future__ import annotations

import gc
import importlib
import io
import mmap
import os
import pickle
import sys
import traceback
from dataclasses import replace
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from iobench.core import registry
from iobench.core.cases import Batch
from iobench.core.clock import clock
from iobench.core.errors import IobenchError
from iobench.core.records import IoCounters
from iobench.host import fingerprint, io_counters, parent_watch

#: Where a batch's pixels are, if not in a slot.
NOWHERE, FILE = -1, -2
#: Batches in shared memory: one that the trainer uses, one that is being filled or waits.
SLOTS = 2
#: Loader option: run in a process of its own.
APART = "apart"
_PAGE, _LENGTH_BYTES = 4096, 4
#: Fields of a fingerprint that identify the software that loads.
_SOFTWARE = ("python", "libraries", "mapped", "sources", "threads")
#: Arrays of one dimension cross so that NumPy before and after version 2 reads them.
_REDUCED: Dict[type, Any] = {
    np.ndarray: lambda array: (np.frombuffer, (bytearray(array), array.dtype.str))
}


class Channel:
    """Messages and file descriptors over one end of a Unix socket pair.

    ``received``: bytes read so far, which the kernel counts among those that this process read.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.received = 0

    def send(self, *message: Any, file: Optional[int] = None) -> None:
        """Send a message, and after it a file descriptor.  Raises OSError when nobody listens."""
        data = io.BytesIO()
        pickler = pickle.Pickler(data, protocol=4)
        pickler.dispatch_table = _REDUCED
        pickler.dump(message)
        self.connection.send_bytes(data.getbuffer())
        if file is not None:
            reduction.send_handle(self.connection, file, None)

    def receive(self) -> Tuple[Any, ...]:
        """Return the next message.  Raises EOFError or OSError at the end of the connection."""
        data = self.connection.recv_bytes()
        self.received += _LENGTH_BYTES + len(data)
        return tuple(pickle.loads(data))

    def receive_file(self) -> int:
        """Return the file descriptor that follows the last message."""
        return reduction.recv_handle(self.connection)


def mapped(file: int, shape: Sequence[int]) -> np.ndarray:
    """Map a file of shared memory as a float32 array of ``shape``, and close the descriptor."""
    count = int(np.prod(shape))
    try:
        memory = mmap.mmap(file, 4 * count)
    finally:
        os.close(file)
    return np.frombuffer(memory, np.float32, count).reshape(shape)


def touched(array: np.ndarray) -> np.ndarray:
    """Return ``array`` with all of its pages in this process's page table."""
    pages = array.reshape(-1).view(np.uint8)[::_PAGE]
    pages |= 0
    return array


def main(argv: List[str]) -> int:
    """Serve one loader; ``argv``: descriptor of the connection, the members that load."""
    parent_watch.end_when_closed(0)
    channel = Channel(Connection(int(argv[0])))
    try:
        _serve(channel, dict(word.split("=", 1) for word in argv[1:]))
    except (BrokenPipeError, ConnectionResetError, EOFError):
        return 0  # nobody listens any more
    except Exception as error:  # noqa: BLE001  (a loader may raise anything)
        if not isinstance(error, IobenchError):
            traceback.print_exc()
        channel.send("error", type(error).__name__, " ".join(str(error).split())[:4000])
        return 1
    return 0


def _serve(channel: Channel, members: Mapping[str, str]) -> None:
    for axis, name in members.items():
        for module in registry.require(axis, name).requires:
            importlib.import_module(module)
    gc.freeze()
    channel.send("ready")
    _, request, options = channel.receive()
    request = replace(request, root=Path(request.root))
    backend = registry.load("loaders", members["loaders"])
    loader = backend.make(request, **options)
    try:
        channel.send("made", loader.queue_batches, bool(getattr(loader, "shares", False)))
        slots = np.empty(0, np.float32)
        word, *values = channel.receive()
        if word == "slots":
            slots = touched(mapped(channel.receive_file(), *values))
            word, *_ = channel.receive()
        read = _measured(channel, loader, slots) if word == "begin" else IoCounters()
    finally:
        loader.close()
    libraries = registry.libraries(backend.stack or registry.DEFAULT_STACK, **members)
    found = fingerprint.collect(request.root, *libraries)
    channel.send("closed", read, {name: found[name] for name in _SOFTWARE})


def _measured(channel: Channel, loader: Any, slots: np.ndarray) -> IoCounters:
    """Hand all batches over and close the loader; return what that read and computed."""
    alive: List[int] = getattr(loader, "processes", list)()
    before, messages = io_counters.snapshot(alive), channel.received
    _hand_over(channel, loader, slots)
    ended, messages = io_counters.snapshot(alive), channel.received - messages
    loader.close()
    read = io_counters.since(before, before, ended, io_counters.snapshot())
    return replace(read, rchar=read.rchar - messages)


def _hand_over(channel: Channel, loader: Any, slots: np.ndarray) -> None:
    """Send every batch, as slots become free, until ``close`` comes."""
    batches = loader.batches()
    k = 0
    while k < SLOTS or channel.receive()[0] == "next":
        batch: Optional[Batch] = next(batches, None)
        if batch is None:
            break
        begun = clock()
        where, file = NOWHERE, None
        if slots.size:
            where = k % SLOTS
            slots[where] = np.asarray(batch.data)
        elif batch.data is not None:
            where, file = FILE, loader.descriptor(batch)
        ids, labels = np.asarray(batch.ids, np.int64), np.asarray(batch.labels, np.int64)
        plain = batch._replace(data=None, ids=ids, labels=labels)
        channel.send("batch", plain, where, begun, clock(), file=file)
        k += 1
        del batch
    else:
        return
    while channel.receive()[0] == "next":
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
