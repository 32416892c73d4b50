"""Threads of this process over any format: what a Python data layer can do without torch.

A thread makes a whole batch at a time, as a worker process of the torch DataLoader does, and as
many batches are ahead (``workers * prefetch``), so that the two differ in threads against processes
alone.  Reading and decoding release the GIL, what lies between them does not.  A trainer that keeps
the GIL while it computes (pycaffe does, BVLC/caffe#2230) stops these threads meanwhile; with
``apart`` they run in a process of their own.
"""

from __future__ import annotations

import copy
import itertools
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Deque, Iterator, List, Mapping, Optional

import numpy as np

from iobench.backends.loaders._batches import REQUIRES, BatchMaker, probe
from iobench.core import transforms
from iobench.core.cases import Batch, Case
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
        self._ids = request.batches()
        self.queue_batches = request.workers * request.prefetch
        self._buffers = _buffers(request, min(self.queue_batches + 1, len(self._ids)))
        if request.stage != "read":
            transforms.single_thread()  # imports the libraries before the clock starts
        reader = request.format.open(request.dataset, request.root)
        if walk and not hasattr(reader, "walk"):
            raise SpecError(f"walk: {request.format_name} is not walked; only lmdb is")
        self._walk: Any = getattr(reader, "walk", None) if walk else None
        readers = [reader, *(copy.deepcopy(reader) for _ in range(request.workers - 1))]
        self._makers = [BatchMaker(request, each) for each in readers]
        self._pool: Optional[ThreadPoolExecutor] = None
        if request.workers:
            free = iter(self._makers)
            self._own = threading.local()
            self._pool = ThreadPoolExecutor(
                request.workers, "iobench-load", lambda: setattr(self._own, "maker", next(free))
            )
            all_up = threading.Barrier(request.workers + 1)
            for _ in self._makers:
                self._pool.submit(all_up.wait)  # one that waits takes no other: each is started
            all_up.wait()

    def walk(self) -> None:
        """Walk through the whole database, where that was asked for."""
        if self._walk is not None:
            self._walk()

    def batches(self) -> Iterator[Batch]:
        """Let the threads begin and yield the epoch's batches in order, once.

        Raises DatasetError, naming the sample, when one cannot be read, decoded or transformed.
        """
        if self._pool is None:
            yield from (self._make(self._makers[0], k) for k in range(len(self._ids)))
            return
        made = (self._pool.submit(self._work, k) for k in range(len(self._ids)))
        ahead: Deque[Future[Batch]] = deque(itertools.islice(made, self.queue_batches))
        try:
            while ahead:
                batch = ahead.popleft().result()
                ahead.extend(itertools.islice(made, 1))  # into the memory of the one before
                yield batch
        except BaseException:  # nobody asks for more, too
            self.close()
            raise

    def close(self) -> None:
        """Stop the threads after the batches they are at.  Idempotent."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for maker in self._makers:
            maker.close()

    def _work(self, k: int) -> Batch:
        return self._make(self._own.maker, k)

    def _make(self, maker: BatchMaker, k: int) -> Batch:
        return maker.make(self._ids[k], self._buffers[k % len(self._buffers)])


def _buffers(request: LoadRequest, count: int) -> List[Optional[np.ndarray]]:
    """Return the memory of ``count`` batches, its pages in place; None a batch without data."""
    if request.stage != "load":
        return [None] * max(count, 1)
    shape = (request.batch, *transforms.transform(request.transform).shape)
    return [np.full(shape, 0, np.float32) for _ in range(max(count, 1))]


def _judge(case: Case) -> None:
    if case.loader_options.get("walk") and case.format != "lmdb":
        raise SpecError(f"walk = true: {case.format} is not walked; allowed: format lmdb")
    if case.loader_options.get("walk") and case.loader_options.get("apart"):
        raise SpecError("walk and apart together are not possible: leave one of them out")


def _unused(case: Case) -> Mapping[str, str]:
    why = "with workers = 0 the batches are made where they are asked for"
    return {} if case.workers else {"prefetch": why}


BACKEND = LoaderBackend(
    ThreadsLoader,
    "threads over any format's reader, in the trainer's process (or apart): needs no torch",
    requires=REQUIRES,
    decodes=True,
    each_worker=True,
    probe=probe,
    judge=_judge,
    unused=_unused,
)
