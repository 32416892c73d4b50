"""torch's DataLoader over any format: worker processes, each with its own Reader.

A worker fills one shared-memory batch, row by row, and hands over its file descriptor: what
``default_collate`` does in a worker, without the copy of every sample that stacking costs.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Iterator, List, Literal, Mapping, Optional, Union

import numpy as np

from iobench.backends.loaders._batches import REQUIRES, BatchMaker, joined, probe
from iobench.backends.loaders._torch_workers import Workers, empty_batch
from iobench.core import transforms
from iobench.core.cases import Batch, Case
from iobench.core.errors import DatasetError, IobenchError
from iobench.core.members import LoaderBackend
from iobench.core.options import Range
from iobench.core.protocols import LoadRequest


class _Samples:
    """A map-style dataset whose item is a whole batch.

    Its Readers are made here, once, one a thread, and open their files in the worker that reads.
    """

    def __init__(self, request: LoadRequest, shared: bool, threads: int) -> None:
        self._shape = transforms.transform(request.transform).shape
        self._fills = request.stage == "load"
        self._shared = shared
        reader = request.format.open(request.dataset, request.root)
        readers = [reader, *(copy.deepcopy(reader) for _ in range(threads - 1))]
        self._makers = [BatchMaker(request, each) for each in readers]
        self._pool: Optional[ThreadPoolExecutor] = None  # of the worker, from its first batch on

    def __getitems__(self, ids: np.ndarray) -> Union[Batch, IobenchError]:
        """Return the batch of these samples, as far as the stage goes, or why there is none."""
        try:
            if not self._fills:
                return self._make(ids, None)
            data = empty_batch((len(ids), *self._shape), self._shared)
            return self._make(ids, data.numpy())._replace(data=data)
        except IobenchError as error:
            return error

    def _make(self, ids: np.ndarray, data: Optional[np.ndarray]) -> Batch:
        count = len(self._makers)
        if count == 1:
            return self._makers[0].make(ids, data)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(count, "iobench-load")
        rows: Any = [None] * count if data is None else np.array_split(data, count)
        asked = zip(self._makers, np.array_split(ids, count), rows)
        return joined(list(self._pool.map(lambda part: part[0].make(*part[1:]), asked)), data)

    def close(self) -> None:
        """Stop the threads of this process and close its Readers.  Idempotent."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        for maker in self._makers:
            maker.close()


class TorchLoader:
    """One epoch of one rank through ``torch.utils.data.DataLoader``.

    The worker processes are up, and held, when this is made; the clock of the measured loop sees
    them begin on an empty queue.
    """

    def __init__(
        self,
        request: LoadRequest,
        *,
        start_method: Literal["fork", "spawn"] = "fork",
        pin_memory: Optional[bool] = None,  # None: where the batches go to a GPU
        threads: Annotated[int, Range(1, 1024)] = 1,
        in_order: bool = True,
    ) -> None:
        """``threads``: in each worker, which share a batch's samples: more reads at a time where
        each takes long.  ``in_order``: off, batches come as they are completed.

        Raises SpecError for an unknown start method, BackendUnavailable for a small /dev/shm."""
        self._samples = _Samples(request, request.workers > 0, threads)
        self._count = len(request.ids) // request.batch
        pins = request.device == "cuda" if pin_memory is None else pin_memory
        #: Whether batches lie in shared memory: see :meth:`descriptor`.
        self.shares = request.stage == "load" and request.workers > 0 and not pins
        self._workers = Workers(
            request,
            self._samples,
            start_method=start_method,
            pins=pins,
            batch_sampler=request.batches(),
            in_order=in_order,
        )
        self.queue_batches = self._workers.queued

    def batches(self) -> Iterator[Batch]:
        """Let the workers begin and yield the epoch's batches, once.

        Raises DatasetError, naming the sample, when one cannot be read, decoded or transformed.
        """
        made = iter(self._workers)
        # counted, so that the workers' shutdown is not waited for inside the measured loop
        for _ in range(self._count):
            batch = next(made)
            if isinstance(batch, IobenchError):
                self.close()
                raise DatasetError(str(batch))
            yield batch

    def processes(self) -> List[int]:
        """Return the workers that are up: what they used until now is start-up."""
        return self._workers.processes()

    def descriptor(self, batch: Batch) -> int:
        """Return the file that begins with a batch's pixels, open as long as the batch is held.

        A worker made it in shared memory; another process may map it (``shares``).
        """
        return int(batch.data.untyped_storage()._share_fd_cpu_()[0])

    def close(self) -> None:
        """Stop and reap the workers.  Idempotent."""
        self._workers.close()
        self._samples.close()


def _unused(case: Case) -> Mapping[str, str]:
    why = "with workers = 0 the trainer's own process makes the batches"
    keys = ("prefetch", "loader_options.start_method", "loader_options.in_order")
    return {} if case.workers else dict.fromkeys(keys, why)


def _decoding_threads(case: Case) -> int:
    return max(case.workers, 1) * int(case.loader_options.get("threads") or 1)


BACKEND = LoaderBackend(
    TorchLoader,
    "torch DataLoader over any format's reader: worker processes, prefetch, pinned memory",
    requires=("torch", *REQUIRES),
    decodes=True,
    each_worker=True,
    in_turn=True,
    decoding_threads=_decoding_threads,
    also_audited=({"in_order": False}, {"threads": 4}),
    probe=probe,
    stack="torch",
    unused=_unused,
)
