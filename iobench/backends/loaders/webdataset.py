"""WebDataset: whole shards streamed by DataLoader workers, each with a shuffle buffer.

As its users write it, but for what its defaults lose, repeat or keep in one order (`iobench
audit`): the list of shards is shuffled anew for each epoch, shared out among the workers, and
walked once.  What is left over of each worker's last batch is put together to whole ones.
"""

from __future__ import annotations

import collections
import contextlib
import random
import tarfile
from typing import Any, Deque, Dict, Iterator, List, Mapping, Sequence, Tuple, Union
from urllib.parse import urlparse

import numpy as np

from iobench.backends.loaders._batches import REQUIRES, BatchMaker, joined
from iobench.backends.loaders._torch_workers import Workers, empty_batch
from iobench.core import transforms
from iobench.core.cases import Batch, Case, Extent, Scalar
from iobench.core.errors import DatasetError, IobenchError, SpecError
from iobench.core.members import LoaderBackend
from iobench.core.order import shard_buffer
from iobench.core.protocols import LoadRequest, Reader

_SHARDS = 3  # of this draw, beside those of core.order
_Made = Union[Batch, IobenchError]


class WebdatasetLoader:
    """One epoch of one rank through a ``webdataset.WebDataset`` in DataLoader workers."""

    def __init__(self, request: LoadRequest) -> None:
        """Raises SpecError for an order that is one sequence, BackendUnavailable for a small
        /dev/shm."""
        if not shard_buffer(request.order):
            raise SpecError(f"webdataset cannot follow order {request.order!r}; use shards:N")
        transforms.transform(request.transform)
        self._request = request
        self._shards = _shards(request)
        self._workers = Workers(
            request,
            _pipeline(request, self._shards),
            start_method="fork",
            pins=request.device == "cuda",
            batch_size=None,
        )
        self.queue_batches = self._workers.queued

    def batches(self) -> Iterator[Batch]:
        """Let the workers begin and yield the epoch's batches, once.

        Raises DatasetError for a sample that cannot be decoded, which it names, and for shards
        that are damaged or lack samples.
        """
        request = self._request
        left = request.batches().size
        parts: List[Batch] = []
        for made in self._workers:
            if isinstance(made, IobenchError):
                self.close()
                raise DatasetError(str(made))
            left -= len(made.ids)
            if len(made.ids) == request.batch:
                yield made
            else:
                parts.append(made)
            if not left:  # the workers' shutdown is not waited for inside the measured loop
                break
        if left:
            self.close()
            raise DatasetError(f"{left} samples did not come out of {request.root}: convert again")
        yield from _cut(parts, request)

    def describe(self) -> Mapping[str, Scalar]:
        """Return the number of shards that the workers share: one without any has no work."""
        return {"shards": len(self._shards)}

    def processes(self) -> List[int]:
        """Return the workers that are up."""
        return self._workers.processes()

    def close(self) -> None:
        """Stop and reap the workers.  Idempotent."""
        self._workers.close()


def _shards(request: LoadRequest) -> List[str]:
    """Return the shards that hold the samples wanted, in stored order."""
    wanted = np.unique(request.ids).tolist()
    with contextlib.closing(request.format.open(request.dataset, request.root)) as reader:
        found = list(dict.fromkeys(e.path for i in wanted for e in reader.extents(i)))
    for path in found:
        if urlparse(path).path != path:
            raise DatasetError(f"WebDataset takes {path} for a URL: rename that folder")
    return found


def _pipeline(request: LoadRequest, shards: Sequence[str]) -> Any:
    """Return the pipeline whose items are batches, the last of each worker not whole."""
    import webdataset

    ids, times = np.unique(request.ids, return_counts=True)
    wanted = np.zeros(len(request.labels), bool)
    wanted[ids] = True
    walked: List[str] = []
    for epoch in range(request.epoch, request.epoch + int(times.max())):
        draw = np.random.default_rng([_SHARDS, request.seed, epoch])
        walked += [shards[i] for i in draw.permutation(len(shards))]
    stream: Any = webdataset.WebDataset(
        walked, shardshuffle=False, nodesplitter=None, empty_check=False, seed=request.seed
    )
    mixed = stream.select(lambda sample: wanted[int(sample["__key__"])]).shuffle(
        shard_buffer(request.order), rng=random.Random(f"{request.seed} {request.epoch}")
    )
    return mixed.compose(_Batches(request))


class _Arrived(Reader):
    """Samples as they came out of the shards, in their order."""

    def __init__(self) -> None:
        self.held: Deque[Tuple[bytes, int]] = collections.deque()

    def __len__(self) -> int:
        return len(self.held)

    def read(self, index: int) -> Tuple[bytes, int]:
        """Return (JPEG, label) of the next one."""
        return self.held.popleft()

    def extents(self, index: int) -> Sequence[Extent]:
        """Return none: they are in memory."""
        return ()


class _Batches:
    """The pipeline's last stage, in the worker: samples -> batches, or why there is none."""

    def __init__(self, request: LoadRequest) -> None:
        self._request = request
        self._arrived = _Arrived()
        self._maker = BatchMaker(request, self._arrived)

    def __call__(self, samples: Iterator[Dict[str, Any]]) -> Iterator[_Made]:
        ids: List[int] = []
        try:
            for sample in samples:
                ids.append(int(sample["__key__"]))
                self._arrived.held.append((sample["jpg"], int(sample["cls"])))
                if len(ids) == self._request.batch:
                    yield self._made(ids)
                    ids = []
            if ids:
                yield self._made(ids)
        except DatasetError as error:
            yield error
        except (OSError, ValueError, LookupError, tarfile.TarError) as error:
            yield DatasetError(f"shards of {self._request.root}: {error}; convert again")

    def _made(self, ids: Sequence[int]) -> Batch:
        """Return the batch, without times of its samples: they were read before."""
        request = self._request
        data = rows = None
        if request.stage == "load":
            shape = transforms.transform(request.transform).shape
            data = empty_batch((len(ids), *shape), request.workers > 0)
            rows = data.numpy()
        batch = self._maker.make(np.array(ids, np.int64), rows)
        return batch._replace(data=data, marks=None)


def _cut(parts: Sequence[Batch], request: LoadRequest) -> Iterator[Batch]:
    """Yield whole batches of what the workers had left over."""
    if not parts:
        return
    data = None
    if parts[0].data is not None:
        import torch

        data = torch.cat([part.data for part in parts])
    every = joined(parts, data)
    for start in range(0, len(every.ids), request.batch):
        rows = slice(start, start + request.batch)
        ids = every.ids[rows]
        yield Batch(
            None if data is None else data[rows],
            every.labels[rows],
            ids,
            int(request.sizes[ids].sum()),
            every.digests[rows] if every.digests is not None else None,
        )


def _unused(case: Case) -> Mapping[str, str]:
    why = "with workers = 0 the trainer's own process makes the batches"
    return {} if case.workers else {"prefetch": why}


BACKEND = LoaderBackend(
    WebdatasetLoader,
    "WebDataset: whole tar shards streamed by DataLoader workers, mixed in a shuffle buffer",
    requires=("torch", "webdataset", *REQUIRES),
    libraries={"webdataset": "webdataset"},
    stack="torch",
    formats=frozenset({"tar"}),
    native=frozenset({"tar"}),
    orders={"tar": frozenset({"shards"})},
    sharings={"tar": frozenset({"disjoint"})},
    decodes=True,
    each_worker=True,
    unused=_unused,
)
