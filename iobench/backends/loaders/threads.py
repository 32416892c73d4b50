"""Threads of this process over any format: what a Python data layer can do without torch.

A thread makes a whole batch at a time, as a worker process of the torch DataLoader does, and as
many batches are ahead (``workers * prefetch``), so that the two differ in threads against processes
alone.  Reading and decoding release the GIL, what lies between them does not.  A trainer that keeps
the GIL while it computes (pycaffe does, BVLC/caffe#2230) stops these threads meanwhile; with
``apart`` they run in a process of their own.
"""

from __future__ import annotations

import copy
import threading
from typing import Any, Dict, Iterator, List, Optional, Union

import numpy as np

from iobench.backends.loaders._batches import BatchMaker, probe
from iobench.core import transforms
from iobench.core.cases import Batch
from iobench.core.errors import SpecError
from iobench.core.members import LoaderBackend
from iobench.core.protocols import LoadRequest


class ThreadsLoader:
    """One epoch of one rank through threads, each with its own Reader.

    The threads are up, and held, when this is made.  With ``workers`` 0 the batches are made where
    they are asked for.  A batch's ``data`` is valid until the next batch is asked for: its memory
    is used again.
    """

    def __init__(self, request: LoadRequest, *, apart: bool = False, walk: bool = False) -> None:
        """``apart``: in a process of its own, its batches handed over through shared memory.

        ``walk``: once through the whole database before the first batch, as Intel-Caffe does to
        shuffle an LMDB; its seconds are start-up, and it cannot be done ``apart``.  Raises
        SpecError for a format that has no walk.
        """
        ids = np.asarray(request.ids, np.int64)
        count = len(ids) // request.batch
        self.queue_batches = request.workers * request.prefetch
        self._ids = [ids[k * request.batch : (k + 1) * request.batch] for k in range(count)]
        self._buffers = _buffers(request, min(self.queue_batches + 1, count))
        if request.stage != "read":
            transforms.single_thread()  # imports the libraries before the clock starts
        reader = request.format.open(request.dataset, request.root)
        if walk and not hasattr(reader, "walk"):
            raise SpecError(f"walk: {request.format_name} is not walked; only lmdb is")
        self._walk: Any = getattr(reader, "walk", None) if walk else None
        readers = [reader, *(copy.deepcopy(reader) for _ in range(request.workers - 1))]
        self._makers = [BatchMaker(request, each) for each in readers]
        self._turns = _Turns(count, self.queue_batches)
        self._threads = [
            threading.Thread(target=self._work, args=(maker,), name="iobench-load", daemon=True)
            for maker in self._makers[: request.workers]
        ]
        for thread in self._threads:
            thread.start()

    def walk(self) -> None:
        """Walk through the whole database, where that was asked for."""
        if self._walk is not None:
            self._walk()

    def batches(self) -> Iterator[Batch]:
        """Let the threads begin and yield the epoch's batches in order, once.

        Raises DatasetError, naming the sample, when one cannot be read, decoded or transformed.
        """
        for k in range(len(self._ids)):
            if not self._threads:
                yield self._make(self._makers[0], k)
                continue
            found = self._turns.take(k)
            if isinstance(found, BaseException):
                self.close()
                raise found
            yield found

    def close(self) -> None:
        """Stop the threads after the batches they are at.  Idempotent."""
        self._turns.close()
        for thread in self._threads:
            thread.join()
        for maker in self._makers:
            maker.close()

    def _work(self, maker: BatchMaker) -> None:
        for k in self._turns.claimed():
            try:
                made: Union[Batch, BaseException] = self._make(maker, k)
            except BaseException as error:  # noqa: BLE001  (raised again where the batch is due)
                made = error
            self._turns.give(k, made)

    def _make(self, maker: BatchMaker, k: int) -> Batch:
        return maker.make(self._ids[k], self._buffers[k % len(self._buffers)])


class _Turns:
    """Which batch is whose: claimed in order, ``ahead`` of them at most beyond the last one taken.

    Batch k may be made in the memory of batch k - ahead - 1: that one's successor was asked for.
    """

    def __init__(self, count: int, ahead: int) -> None:
        self._changed = threading.Condition()
        self._count, self._ahead = count, ahead
        self._claimed = 0
        self._allowed = 0  # batches that may be claimed: none before the first is asked for
        self._made: Dict[int, Any] = {}
        self._closed = False

    def claimed(self) -> Iterator[int]:
        """Yield the batches that one thread is to make, each when it may begin."""
        while True:
            with self._changed:
                self._changed.wait_for(self._decided)
                if self._closed or self._claimed >= self._count:
                    return
                k = self._claimed
                self._claimed += 1
            yield k

    def give(self, k: int, made: Any) -> None:
        """Hand in batch k, or the exception that it ended in."""
        with self._changed:
            self._made[k] = made
            self._changed.notify_all()

    def take(self, k: int) -> Any:
        """Wait for batch k and return what was handed in for it; the one before is done with."""
        with self._changed:
            self._allow(k + self._ahead)
            self._changed.wait_for(lambda: k in self._made or self._closed)
            if k not in self._made:
                raise RuntimeError("the loader was closed while a batch was waited for")
            self._allow(k + 1 + self._ahead)
            return self._made.pop(k)

    def close(self) -> None:
        """Let nobody claim another batch."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _allow(self, batches: int) -> None:
        if batches > self._allowed:
            self._allowed = batches
            self._changed.notify_all()

    def _decided(self) -> bool:
        return self._closed or self._claimed >= self._count or self._claimed < self._allowed


def _buffers(request: LoadRequest, count: int) -> List[Optional[np.ndarray]]:
    """Return the memory of ``count`` batches, its pages in place; None a batch without data."""
    if request.stage != "load":
        return [None] * max(count, 1)
    shape = (request.batch, *transforms.transform(request.transform).shape)
    return [np.full(shape, 0, np.float32) for _ in range(max(count, 1))]


BACKEND = LoaderBackend(
    ThreadsLoader,
    "threads over any format's reader, in the trainer's process (or apart): needs no torch",
    requires=("simplejpeg", "cv2"),
    stages=frozenset({"read", "decode", "load"}),
    probe=probe,
)
