"""The worker processes of a torch DataLoader: up, and held until the measured loop begins."""

from __future__ import annotations

import math
import warnings
from typing import Any, Iterator, List, Tuple

from iobench.core import transforms
from iobench.core.errors import BackendUnavailable, SpecError
from iobench.core.protocols import LoadRequest
from iobench.host import gpus, probes

_START_S = 120.0  # in which the worker processes must be up


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


class Workers:
    """One epoch of a DataLoader: whatever its dataset yields, as it is."""

    def __init__(
        self, request: LoadRequest, dataset: Any, *, start_method: str, pins: bool, **options: Any
    ) -> None:
        """Start the workers.

        ``options``: DataLoader's own.  Raises SpecError for an unknown start method,
        BackendUnavailable for a small /dev/shm, workers that do not come up, no GPU to pin for.
        """
        if start_method not in ("fork", "spawn"):  # a fork server's children nobody here can count
            raise SpecError(f"start_method {start_method!r} is not possible; allowed: fork, spawn")
        import torch.multiprocessing
        import torch.utils.data

        if pins and not torch.cuda.is_available():  # torch itself goes on without, with a warning
            why = gpus.fault(torch.version.cuda)
            raise BackendUnavailable(f"batches are pinned for a GPU that torch can use, and {why}")
        #: Batches that can wait.
        self.queued = request.workers * request.prefetch
        if request.stage == "load" and request.workers:
            transforms.single_thread()  # imports the libraries before the fork, not in every worker
            check_shared_memory("torch", request, self.queued)
        context = torch.multiprocessing.get_context(start_method) if request.workers else None
        self._gate = _Gate(context, request.workers) if request.workers else None
        with warnings.catch_warnings():  # more workers than cores are a setting to be measured
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            loader: Any = torch.utils.data.DataLoader(
                dataset,
                collate_fn=_whole,
                num_workers=request.workers,
                prefetch_factor=request.prefetch if request.workers else None,
                pin_memory=pins,
                multiprocessing_context=context,
                worker_init_fn=self._gate,
                **options,
            )
            self._iterator: Any = iter(loader)
        if self._gate is not None:
            self._gate.wait_up()

    def __iter__(self) -> Iterator[Any]:
        """Let the workers begin and return what they make, once."""
        if self._gate is not None:
            self._gate.open()
        return self._iterator  # type: ignore[no-any-return]

    def processes(self) -> List[int]:
        """Return the workers that are up: what they used until now is start-up."""
        return [worker.pid for worker in getattr(self._iterator, "_workers", ())]

    def close(self) -> None:
        """Stop and reap the workers.  Idempotent."""
        if self._gate is not None:
            self._gate.open()
        iterator, self._iterator = self._iterator, None
        shutdown = getattr(iterator, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()


def _whole(batch: Any) -> Any:
    return batch


def empty_batch(shape: Tuple[int, ...], shared: bool) -> Any:
    """Return an uninitialised float32 tensor, in shared memory when another process takes it."""
    import torch

    if not shared:
        return torch.empty(shape, dtype=torch.float32)
    # torch's own way (default_collate); share_memory_() would copy the uninitialised bytes
    storage = torch.UntypedStorage._new_shared(4 * math.prod(shape))  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.float32).set_(storage, 0, shape)  # type: ignore[call-overload]


def check_shared_memory(loader: str, request: LoadRequest, queued: int) -> None:
    """Raise BackendUnavailable where /dev/shm cannot hold so many batches and one more."""
    needed = (queued + 1) * transforms.batch_bytes(request.transform, request.batch)
    capacity, free = probes.shared_memory()
    if capacity and free < needed:
        raise BackendUnavailable(
            f"{probes.SHARED_MEMORY} has {free >> 20} MiB free, the {loader} loader's queue "
            f"needs {needed >> 20} MiB: make it larger (containers: --shm-size), or use fewer "
            "workers, prefetch or batch"
        )
