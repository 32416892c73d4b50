"""The far side of :mod:`iobench.bridge`: one loader in a process of its own, told what to do.

Packets (SOCK_SEQPACKET) begin with a letter.  From here: U the libraries are imported, M the loader
is made, B a batch lies in a slot, C the loader is closed (what it read), F the fingerprint, E an
error.  To here: the request, S the slots are there, G begin, N the oldest slot is free, X close.

A loader whose batches lie in shared memory already (``shares``) has their file's descriptor sent
along; others' are copied into the slot.

Worker side: Python 3.9, NumPy and the standard library.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import mmap
import socket
import struct
import sys
import traceback
from pathlib import Path
from typing import Any, Dict, Iterable, List, Tuple

import numpy as np

from iobench import codec, fingerprint, iocount, lifetime, registry
from iobench.dataset import DIGEST_DIGITS
from iobench.errors import IobenchError
from iobench.model import Batch, Dataset, IoCounters, to_json
from iobench.protocols import LoadRequest
from iobench.timing import clock

UP, MADE, BATCH_KIND, CLOSED, FACTS, ERROR = "U", "M", "B", "C", "F", "E"
READY, GO, NEXT, CLOSE = b"S", b"G", b"N", b"X"
#: Batches in shared memory: one in the trainer's hands, one that is being filled or waits.
SLOTS = 2
#: Body of a batch's packet: slot, bytes, when it was there and when it was sent (seconds).
BATCH = struct.Struct("<iqdd")
#: Largest packet, bytes; below what a Unix socket's buffer takes.
PACKET = 1 << 17
#: Option of a loader that may run in a process of its own.
APART = "apart"
_PAGE = 4096
#: What of a fingerprint says which software loads.
_SOFTWARE = ("python", "libraries", "mapped", "threads")

Piece = Tuple[str, Any, Tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """What lies where in the shared file: the request's arrays, then the slots.

    ``samples`` ids out of ``total`` in the dataset; both sides come to the same places.
    """

    samples: int
    total: int

    @property
    def _head(self) -> List[Piece]:
        rest: List[Piece] = [(name, np.int64, (self.total,)) for name in ("labels", "sizes")]
        return [("ids", np.int64, (self.samples,)), *rest]

    def head(self, fd: int) -> Dict[str, Any]:
        """Return the request's arrays by name: ids, labels, sizes."""
        return _arrays(mmap.mmap(fd, self.nbytes()), self._head, 0)

    def slots(self, fd: int, slot: List[Piece]) -> List[Dict[str, Any]]:
        """Return each slot's arrays by name; every page is in this process's table afterwards."""
        memory = mmap.mmap(fd, self.nbytes(slot))
        pages = np.frombuffer(memory, np.uint8)[::_PAGE]
        pages |= 0
        first, step = _size(self._head), _size(slot)
        return [_arrays(memory, slot, first + i * step) for i in range(SLOTS)]

    def nbytes(self, slot: Iterable[Piece] = ()) -> int:
        """Return the size of the file with such slots; without them by default."""
        return _size(self._head) + SLOTS * _size(slot)


def slot_of(request: LoadRequest, *, shares: bool) -> List[Piece]:
    """Return what a slot holds; ``shares``: the pixels lie in a file of their own."""
    slot: List[Piece] = [(name, np.int64, (request.batch,)) for name in ("ids", "labels")]
    if request.stage == "load" and not shares:
        slot.append(("data", np.float32, shape_of(request)))
    if request.digest:
        slot.append(("digests", f"S{DIGEST_DIGITS}", (request.batch,)))
    return slot


def shape_of(request: LoadRequest) -> Tuple[int, ...]:
    """Return the shape of a batch's pixels."""
    return (request.batch, *codec.transform(request.transform).shape)


def _size(pieces: Iterable[Piece]) -> int:
    """Return the bytes of the pieces one after another, each from a page's start."""
    return sum(-(-_bytes(piece) // _PAGE) * _PAGE for piece in pieces)


def _bytes(piece: Piece) -> int:
    return int(np.dtype(piece[1]).itemsize * np.prod(piece[2], dtype=np.int64))


def _arrays(memory: Any, pieces: Iterable[Piece], offset: int) -> Dict[str, Any]:
    out = {}
    for piece in pieces:
        name, dtype, shape = piece
        count = int(np.prod(shape, dtype=np.int64))
        out[name] = np.frombuffer(memory, dtype, count, offset).reshape(shape)
        offset += _size([piece])
    return out


def main(argv: List[str]) -> int:
    """Serve one loader; ``argv``: socket, shared file (descriptors), loader, format."""
    lifetime.end_with_starter()
    channel = socket.socket(fileno=int(argv[0]))
    try:
        _serve(channel, int(argv[1]), *argv[2:])
    except (BrokenPipeError, ConnectionResetError):
        return 0  # nobody listens any more
    except Exception as error:  # noqa: BLE001  (whatever a library raises is for the near side)
        if not isinstance(error, IobenchError):
            traceback.print_exc()
        message = " ".join(str(error).split())[:4000]
        _say(channel, ERROR, {"type": type(error).__name__, "message": message})
        return 1
    return 0


def _serve(channel: socket.socket, fd: int, loader_name: str, format_name: str) -> None:
    for axis, name in (("loaders", loader_name), ("formats", format_name)):
        for module in registry.require(axis, name).requires:
            importlib.import_module(module)
    gc.freeze()
    _say(channel, UP, {})
    packet = channel.recv(PACKET)
    if packet in (b"", CLOSE):
        return
    document = json.loads(packet)
    layout, request = _request(document, fd)
    loader = registry.load("loaders", loader_name).make(request, **document["loader_options"])
    try:
        shares = bool(getattr(loader, "shares", False))
        _say(channel, MADE, {"queue_batches": loader.queue_batches, "shares": shares})
        io = IoCounters()
        if channel.recv(PACKET) == READY:
            slots = layout.slots(fd, slot_of(request, shares=shares))
            if channel.recv(PACKET) == GO:
                alive: List[int] = getattr(loader, "processes", list)()
                before = iocount.snapshot(alive)
                _hand_over(channel, loader, slots)
                ended = iocount.snapshot(alive)
                loader.close()
                io = iocount.since(before, before, ended, iocount.snapshot())
    finally:
        loader.close()
    _say(channel, CLOSED, to_json(io))
    found = fingerprint.collect(request.root)
    _say(channel, FACTS, {name: found[name] for name in _SOFTWARE})


def _hand_over(channel: socket.socket, loader: Any, slots: List[Dict[str, Any]]) -> None:
    """Put every batch into the next free slot and say so, until told to close."""
    batches = loader.batches()
    k = 0
    while k < SLOTS or channel.recv(PACKET) == NEXT:
        batch = next(batches, None)
        if batch is None:
            break
        begun = clock()
        files = _fill(slots[k % SLOTS], batch, loader)
        body = BATCH.pack(k % SLOTS, batch.nbytes, begun, clock())
        socket.send_fds(channel, [BATCH_KIND.encode() + body], files)
        k += 1
        del batch
    else:
        return
    while channel.recv(PACKET) == NEXT:
        pass


def _fill(slot: Dict[str, Any], batch: Batch, loader: Any) -> List[int]:
    """Write a batch into a slot; return the file that its pixels are in already, if they are."""
    slot["ids"][:] = batch.ids
    slot["labels"][:] = batch.labels
    if "digests" in slot:
        slot["digests"][:] = [digest.encode() for digest in batch.digests or ()]
    if "data" in slot:
        slot["data"][...] = np.asarray(batch.data)
    elif batch.data is not None:
        return [loader.descriptor(batch)]
    return []


def _request(document: Dict[str, Any], fd: int) -> Tuple[Layout, LoadRequest]:
    """Return the request that crossed."""
    format_options = document.pop("format_options")
    layout = Layout(document.pop("samples"), document.pop("total"))
    plain = {k: v for k, v in document.items() if k != "loader_options"}
    dataset = Dataset(**plain.pop("dataset"))
    root = Path(plain.pop("root"))
    made = registry.load("formats", plain["format_name"]).make(**format_options)
    head = {name: array.copy() for name, array in layout.head(fd).items()}
    return layout, LoadRequest(dataset=dataset, format=made, root=root, **head, **plain)


def _say(channel: socket.socket, kind: str, document: Any) -> None:
    channel.send(kind.encode() + json.dumps(document).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
