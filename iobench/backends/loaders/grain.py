"""Grain's dataset over any format: threads, or worker processes, that make whole batches.

As its users write it: a source, a map that makes a sample, batches, and ``to_iter_dataset``, whose
threads work ahead.  The source is the case's samples in the case's order: Grain's own shuffle and
sharding are not used.  Grain's defaults are 16 threads and 500 batches ahead in every process; here
both are the case's, as in a DataLoader: ``workers`` and ``workers * prefetch``.
"""

from __future__ import annotations

import copy
import threading
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Union

from iobench.backends.loaders._batches import REQUIRES, BatchMaker, Sample, probe, stacked
from iobench.backends.loaders._grain_gate import PipeGate
from iobench.backends.loaders._torch_workers import check_shared_memory
from iobench.core import transforms
from iobench.core.cases import Batch, Case
from iobench.core.errors import BackendUnavailable, DatasetError, IobenchError
from iobench.core.members import LoaderBackend
from iobench.core.protocols import LoadRequest, Reader


class GrainLoader:
    """One epoch of one rank through a ``grain.IterDataset``."""

    def __init__(self, request: LoadRequest, *, processes: bool = False) -> None:
        """``processes``: workers are processes (``mp_prefetch``), each with one thread.

        Raises BackendUnavailable for a small /dev/shm or processes that do not come up.
        """
        import grain

        transforms.single_thread()  # imports the libraries before the clock starts
        apart = processes and request.workers > 0
        threads = 0 if apart else request.workers
        self._samples = _SampleMaker(request, _readers(request, max(threads, 1)))
        #: With threads the buffer's, in which the batches are that are being made.
        self.queue_batches = _queued(request) if apart else threads * request.prefetch
        source: Any = grain.MapDataset.source(request.batches().ravel().tolist())
        batches = source.map(self._samples).batch(
            request.batch, drop_remainder=True, batch_fn=stacked
        )
        ahead = grain.ReadOptions(threads, threads * request.prefetch)
        dataset = batches.to_iter_dataset(ahead)
        self._gate: Optional[PipeGate] = None
        if apart:
            if request.stage == "load":
                check_shared_memory("grain", request, self.queue_batches)
            self._gate = PipeGate(request.workers)
            workers = grain.MultiprocessingOptions(request.workers, request.prefetch)
            dataset = dataset.mp_prefetch(workers, self._gate.enter)
        self._iterator: Any = iter(dataset)
        self._count = len(request.ids) // request.batch
        if self._gate is not None:
            # Makes Grain's iterator of each process: else start_prefetch() starts none of them, and
            # close() stops only those of which a batch was taken.
            self._iterator.get_state()
            self._iterator.start_prefetch()
            try:
                self._gate.wait_up()
            except BackendUnavailable:
                self.close()
                raise

    def batches(self) -> Iterator[Batch]:
        """Let the workers begin and yield the epoch's batches in order, once.

        Raises DatasetError, naming the sample, when one cannot be read, decoded or transformed.
        """
        if self._gate is not None:
            self._gate.open()
        # counted, so that the workers' end is not waited for inside the measured loop
        for _ in range(self._count):
            batch = next(self._iterator)
            if isinstance(batch, IobenchError):
                raise DatasetError(str(batch))
            yield batch

    def processes(self) -> List[int]:
        """Return the worker processes: what they used until now is start-up."""
        return [] if self._gate is None else list(self._gate.processes)

    def close(self) -> None:
        """Stop the workers after the batches they are at and close the readers.  Idempotent."""
        if self._gate is not None:
            self._gate.open()
        self._iterator.close()
        if self._gate is not None:
            self._gate.close()
        self._samples.close()


def _queued(request: LoadRequest) -> int:
    """Return how many batches can wait between worker processes and the trainer.

    Each process has ``prefetch`` in its queue and one that did not fit; the thread of the trainer's
    process that empties the queue has as many again.
    """
    return request.workers * 2 * (request.prefetch + 1)


def _readers(request: LoadRequest, count: int) -> List[Reader]:
    reader = request.format.open(request.dataset, request.root)
    return [reader, *(copy.deepcopy(reader) for _ in range(count - 1))]


class _SampleMaker:
    """The map's function: makes a sample, or says why there is none."""

    def __init__(self, request: LoadRequest, readers: Sequence[Reader]) -> None:
        self._made_of = request, readers
        self._makers = [_OwnMaker(request, each) for each in readers]
        self._free = iter(self._makers)
        self._own = threading.local()

    def __reduce__(self) -> Any:
        return type(self), self._made_of

    def __call__(self, sample: int) -> Union[Sample, IobenchError]:
        """Return the sample, as far as the stage goes, or why there is none."""
        if not hasattr(self._own, "maker"):
            self._own.maker = next(self._free, self._makers[0])
        made: Union[Sample, IobenchError] = self._own.maker.sample(sample)
        return made

    def close(self) -> None:
        """Wait for the samples that threads are at and close the readers.  Idempotent."""
        for maker in self._makers:
            maker.close()


class _OwnMaker(BatchMaker):
    """One thread's; Grain does not wait for its threads when an epoch is left."""

    def __init__(self, request: LoadRequest, reader: Reader) -> None:
        super().__init__(request, reader)
        self._closed, self._lock = False, threading.Lock()

    def sample(self, sample: int) -> Union[Sample, IobenchError]:
        """Return one sample, or why there is none: after :meth:`close`, too."""
        with self._lock:
            if self._closed:
                return DatasetError("the loader is closed")
            return super().sample(sample)

    def close(self) -> None:
        """Close the Reader when it is not in use.  Idempotent."""
        with self._lock:
            self._closed = True
            super().close()


def _unused(case: Case) -> Mapping[str, str]:
    why = "with workers = 0 the trainer's own process makes the batches"
    return {} if case.workers else dict.fromkeys(("prefetch", "loader_options.processes"), why)


BACKEND = LoaderBackend(
    GrainLoader,
    "Grain: threads of the trainer's process, or worker processes, over any format's reader",
    requires=("grain", *REQUIRES),
    libraries={"grain": "grain"},
    stack="torch",
    decodes=True,
    each_worker=True,
    probe=probe,
    unused=_unused,
)
