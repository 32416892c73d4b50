"""One batch, sample by sample, through a format's Reader: what every loader of that kind does."""

from __future__ import annotations

import itertools
from array import array
from typing import Any, Dict, List, MutableSequence, Optional, Sequence, Union

import numpy as np

from iobench.core import registry, transforms
from iobench.core.cases import Batch
from iobench.core.clock import clock
from iobench.core.dataset import sample_digest
from iobench.core.errors import DatasetError, IobenchError
from iobench.core.protocols import LoadRequest, Reader

#: What transforming imports; a decoder names its own.
REQUIRES = ("cv2",)
_PAGE = 4096


def touch(data: Any) -> int:
    """Read one byte of every page of ``data`` (bytes-like or array); return its bytes.

    A memory-mapped value is only fetched from storage when it is touched.
    """
    flat = np.frombuffer(memoryview(data).cast("B"), np.uint8)
    if flat.size:
        flat[::_PAGE].max()
        flat[-1:].max()
    return int(flat.size)


class BatchMaker:
    """Makes the batches that one process, or one thread, is asked for.

    ``reader`` is its alone, and opens its files at the first batch.  Picklable until then.
    """

    def __init__(self, request: LoadRequest, reader: Optional[Reader] = None) -> None:
        self._request = request
        self._transform = transforms.transform(request.transform)
        self._decode = registry.decoder(request.decoder)
        opened = request.format.open(request.dataset, request.root) if reader is None else reader
        self._reader = opened

    def make(self, ids: np.ndarray, data: Optional[np.ndarray] = None) -> Batch:
        """Return the batch of these samples, as far as the stage goes.

        ``data``: what the stage ``load`` fills, (len(ids), *shape) float32.  Raises DatasetError,
        naming the sample, when one cannot be read, decoded or transformed.
        """
        request = self._request
        if request.stage != "read":
            transforms.single_thread()
        labels = np.empty(len(ids), np.int64)
        marks = array("d")
        now = clock()
        nbytes = 0
        digests: List[str] = []
        sample = -1
        try:
            for row, sample in enumerate(ids.tolist()):
                marks.append(now)
                stored, labels[row] = self._reader.read(sample)
                if request.digest:
                    digests.append(sample_digest(stored))
                nbytes += self._work(stored, sample, None if data is None else data[row], marks)
                now = marks[-1]
        except (DatasetError, OSError, ValueError) as error:
            raise DatasetError(at(request, sample, error)) from error
        times = np.frombuffer(marks)
        return Batch(data, labels, ids, nbytes, digests if request.digest else None, times)

    def _work(
        self, stored: Any, sample: int, row: Optional[np.ndarray], marks: MutableSequence[float]
    ) -> int:
        """Do with what was read what the stage wants; append the time after each part."""
        request = self._request
        if request.stage == "read":
            nbytes = touch(stored)
            marks.append(clock())
            return nbytes
        marks.append(clock())
        pixels = transforms.decode(stored, by=self._decode, delay_s=request.decode_delay_s)
        marks.append(clock())
        if row is not None:
            random = transforms.SampleRandom(request.seed, request.epoch, sample)
            self._transform.apply(pixels, random, row)
            marks.append(clock())
        return int(stored.nbytes) if isinstance(stored, (np.ndarray, memoryview)) else len(stored)

    def close(self) -> None:
        """Close the Reader.  Idempotent."""
        self._reader.close()


def joined(parts: Sequence[Batch], data: Any) -> Batch:
    """Return one batch of several, in their order; ``data``: its pixels, None without."""
    digests = [part.digests for part in parts if part.digests is not None]
    marks = [part.marks for part in parts if part.marks is not None]
    return Batch(
        data,
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.ids for part in parts]),
        sum(part.nbytes for part in parts),
        list(itertools.chain.from_iterable(digests)) if digests else None,
        np.concatenate(marks) if marks else None,
    )


def stacked(samples: Sequence[Union[Batch, IobenchError]]) -> Union[Batch, IobenchError]:
    """Return the batch of these batches of one sample, or the first error among them."""
    made: List[Batch] = []
    for each in samples:
        if isinstance(each, IobenchError):
            return each
        made.append(each)
    data = None if made[0].data is None else np.concatenate([each.data for each in made])
    return joined(made, data)


def probe(request: LoadRequest, samples: int) -> Dict[str, List[float]]:
    """Return ``read_s``, ``decode_s`` and ``transform_s`` of each of the first ``samples`` ids.

    One process, one sample at a time, nothing overlaps: the shares of a sample's time.  All are
    read before the first is decoded: a device with a rate limit, or one that reads ahead, would
    else recover during each decode, and a slower decode would look like a faster read.
    """
    transforms.single_thread()
    transform = transforms.transform(request.transform)
    by = registry.decoder(request.decoder)
    reader = request.format.open(request.dataset, request.root)
    row = np.empty(transform.shape, np.float32)
    times: Dict[str, List[float]] = {"read_s": [], "decode_s": [], "transform_s": []}
    wanted = np.asarray(request.ids)[:samples].tolist()
    every: List[Any] = []
    sample = -1
    try:
        for sample in wanted:
            start = clock()
            every.append(reader.read(sample)[0])
            touch(every[-1])
            times["read_s"].append(clock() - start)
        for sample, stored in zip(wanted, every):
            start = clock()
            pixels = transforms.decode(stored, by=by, delay_s=request.decode_delay_s)
            decoded = clock()
            random = transforms.SampleRandom(request.seed, request.epoch, sample)
            transform.apply(pixels, random, row)
            times["transform_s"].append(clock() - decoded)
            times["decode_s"].append(decoded - start)
    except (DatasetError, OSError, ValueError) as error:
        raise DatasetError(at(request, sample, error)) from error
    del every, stored
    reader.close()
    return times


def at(request: LoadRequest, sample: int, error: Exception) -> str:
    """Return one line that names the sample and says what is wrong with it."""
    text = " ".join(str(error).split())
    return f"sample {sample} of {request.root}: {text}"
