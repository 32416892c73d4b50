"""torch's DataLoader over any format: worker processes, each with its own Reader.

A worker fills one shared-memory batch, row by row, and hands over its file descriptor: what
``default_collate`` does in a worker, without the copy of every sample that stacking costs.
"""

from __future__ import annotations

import copy
import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Iterator, List, Literal, Mapping, Optional, Tuple, Union

import numpy as np

from iobench.backends.loaders._batches import REQUIRES, BatchMaker, joined, probe
from iobench.core import transforms
from iobench.core.cases import Batch, Case
from iobench.core.errors import BackendUnavailable, DatasetError, IobenchError, SpecError
from iobench.core.members import LoaderBackend
from iobench.core.options import Range
from iobench.core.protocols import LoadRequest
from iobench.host import probes

_START_S = 120.0  # in which the worker processes must be up


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
            data = _empty_batch((len(ids), *self._shape), self._shared)
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


class _Gate:
    """Holds started workers back until the measured loop begins: start-up stays apart.

    Given to DataLoader as ``worker_init_fn``.  Nothing of the dataset is opened before the gate.
    """

    def __init__(self, context: Any, workers: int) -> None:
        # semaphores: an Event's set() waits for ever for a process that was killed as it waited
        self._up, self._go = context.Semaphore(0), context.Semaphore(0)
        self._workers = workers

    def __call__(self, worker: int) -> None:
        transforms.single_thread()
        self._up.release()
        self._go.acquire()

    def wait_up(self) -> None:
        """Return when all workers stand at the gate.

        Raises BackendUnavailable when they do not come up.
        """
        if not all(self._up.acquire(timeout=_START_S) for _ in range(self._workers)):
            self.open()
            raise BackendUnavailable(
                f"the torch loader's {self._workers} workers were not up after {_START_S:.0f} s: "
                "use fewer workers, or look for what blocks new processes here"
            )

    def open(self) -> None:
        """Let the workers begin."""
        for _ in range(self._workers):
            self._go.release()


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
        if start_method not in ("fork", "spawn"):  # a fork server's children nobody here can count
            raise SpecError(f"start_method {start_method!r} is not possible; allowed: fork, spawn")
        import torch.multiprocessing
        import torch.utils.data

        self._samples = _Samples(request, request.workers > 0, threads)
        self._count = len(request.ids) // request.batch
        self.queue_batches = request.workers * request.prefetch
        pins = request.device == "cuda" if pin_memory is None else pin_memory
        #: Whether batches lie in shared memory: see :meth:`descriptor`.
        self.shares = request.stage == "load" and request.workers > 0 and not pins
        if request.stage == "load" and request.workers:
            transforms.single_thread()  # imports the libraries before the fork, not in every worker
            _check_shared_memory(request, self.queue_batches)
        context = torch.multiprocessing.get_context(start_method) if request.workers else None
        self._gate = _Gate(context, request.workers) if request.workers else None
        with warnings.catch_warnings():  # more workers than cores are a setting to be measured
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            loader: Any = torch.utils.data.DataLoader(
                self._samples,  # type: ignore[arg-type]
                batch_sampler=request.batches(),
                collate_fn=_whole,
                num_workers=request.workers,
                prefetch_factor=request.prefetch if request.workers else None,
                pin_memory=pins,
                multiprocessing_context=context,
                worker_init_fn=self._gate,
                in_order=in_order,
            )
            self._iterator: Any = iter(loader)
        if self._gate is not None:
            self._gate.wait_up()

    def batches(self) -> Iterator[Batch]:
        """Let the workers begin and yield the epoch's batches, once.

        Raises DatasetError, naming the sample, when one cannot be read, decoded or transformed.
        """
        if self._gate is not None:
            self._gate.open()
        # counted, so that the workers' shutdown is not waited for inside the measured loop
        for _ in range(self._count):
            batch = next(self._iterator)
            if isinstance(batch, IobenchError):
                self.close()
                raise DatasetError(str(batch))
            yield batch

    def processes(self) -> List[int]:
        """Return the workers that are up: what they used until now is start-up."""
        return [worker.pid for worker in getattr(self._iterator, "_workers", ())]

    def descriptor(self, batch: Batch) -> int:
        """Return the file that begins with a batch's pixels, open as long as the batch is held.

        A worker made it in shared memory; another process may map it (``shares``).
        """
        return int(batch.data.untyped_storage()._share_fd_cpu_()[0])

    def close(self) -> None:
        """Stop and reap the workers.  Idempotent."""
        if self._gate is not None:
            self._gate.open()
        iterator, self._iterator = self._iterator, None
        shutdown = getattr(iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()
        self._samples.close()


def _whole(batch: Any) -> Any:
    return batch


def _empty_batch(shape: Tuple[int, ...], shared: bool) -> Any:
    """Return an uninitialised float32 tensor, in shared memory when another process takes it."""
    import torch

    if not shared:
        return torch.empty(shape, dtype=torch.float32)
    # torch's own way (default_collate); share_memory_() would copy the uninitialised bytes
    storage = torch.UntypedStorage._new_shared(4 * math.prod(shape))  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.float32).set_(storage, 0, shape)  # type: ignore[call-overload]


def _check_shared_memory(request: LoadRequest, queued: int) -> None:
    needed = (queued + 1) * transforms.batch_bytes(request.transform, request.batch)
    capacity, free = probes.shared_memory()
    if capacity and free < needed:
        raise BackendUnavailable(
            f"{probes.SHARED_MEMORY} has {free >> 20} MiB free, the torch loader's queue needs "
            f"{needed >> 20} MiB: make it larger (containers: --shm-size), or use fewer workers, "
            "prefetch or batch"
        )


def _unused(case: Case) -> Mapping[str, str]:
    why = "with workers = 0 the trainer's own process makes the batches"
    keys = ("prefetch", "loader_options.start_method", "loader_options.in_order")
    return {} if case.workers else dict.fromkeys(keys, why)


BACKEND = LoaderBackend(
    TorchLoader,
    "torch DataLoader over any format's reader: worker processes, prefetch, pinned memory",
    requires=("torch", *REQUIRES),
    decodes=True,
    in_turn=True,
    probe=probe,
    stack="torch",
    unused=_unused,
)
