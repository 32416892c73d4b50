"""One batch, sample by sample, through a format's Reader: what every loader of that kind does."""

from __future__ import annotations

import itertools
from array import array
from typing import (
    Any,
    Dict,
    List,
    MutableSequence,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from iobench.core import registry, transforms
from iobench.core.cases import Batch
from iobench.core.clock import clock
from iobench.core.dataset import sample_digest
from iobench.core.errors import DatasetError, IobenchError, plain
from iobench.core.protocols import LoadRequest, Reader

#: What transforming imports; a decoder names its own.
REQUIRES = ("cv2",)
_PAGE = 4096
#: Samples that a probe reads before it decodes them.
STRETCH = 256


def touch(data: Any) -> int:
    """Read one byte of every page of ``data`` (bytes-like or array); return its bytes.

    A memory-mapped value is only fetched from storage when it is touched.
    """
    flat = np.frombuffer(memoryview(data).cast("B"), np.uint8)
    if flat.size:
        flat[::_PAGE].max()
        flat[-1:].max()
    return int(flat.size)


class Sample(NamedTuple):
    """One sample, for loaders that stack batches of single ones."""

    data: Optional[np.ndarray]  # (3, 224, 224) float32 after load, None after read and decode
    label: int
    id: int
    nbytes: int  # encoded
    digest: Optional[str]  # of the stored bytes, in the untimed twin
    marks: Sequence[float]  # clock readings: as it began and after each part


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
        self._loads = request.stage == "load"
        self._alone = request.stage == "read"

    def make(self, ids: np.ndarray, data: Optional[np.ndarray] = None) -> Batch:
        """Return the batch of these samples, as far as the stage goes.

        ``data``: what the stage ``load`` fills, (len(ids), *shape) float32.  Raises DatasetError,
        naming the sample, when one cannot be read, decoded or transformed.
        """
        self._stay_alone()
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
                if self._request.digest:
                    digests.append(sample_digest(stored))
                nbytes += self._work(stored, sample, None if data is None else data[row], marks)
                now = marks[-1]
        except (DatasetError, OSError, ValueError) as error:
            raise DatasetError(at(self._request, sample, error)) from error
        times = np.frombuffer(marks)
        return Batch(data, labels, ids, nbytes, digests if self._request.digest else None, times)

    def sample(self, sample: int) -> Union[Sample, IobenchError]:
        """Return one sample, as far as the stage goes, or why there is none."""
        self._stay_alone()
        marks = [clock()]
        try:
            stored, label = self._reader.read(sample)
            digest = sample_digest(stored) if self._request.digest else None
            row = np.empty(self._transform.shape, np.float32) if self._loads else None
            nbytes = self._work(stored, sample, row, marks)
        except (DatasetError, OSError, ValueError) as error:
            return DatasetError(at(self._request, sample, error))
        return Sample(row, label, sample, nbytes, digest, marks)

    def _stay_alone(self) -> None:
        """Keep OpenCV on this thread, from the first batch or sample on."""
        if not self._alone:
            transforms.single_thread()
            self._alone = True

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


def stacked(samples: Sequence[Union[Sample, IobenchError]]) -> Union[Batch, IobenchError]:
    """Return the batch of these samples, or the first error among them."""
    made: List[Sample] = []
    for each in samples:
        if isinstance(each, IobenchError):
            return each
        made.append(each)
    rows, labels, ids, nbytes, digests, marks = zip(*made)
    return Batch(
        None if rows[0] is None else np.stack(rows),
        np.array(labels, np.int64),
        np.array(ids, np.int64),
        sum(nbytes),
        None if digests[0] is None else list(digests),
        np.array(marks).ravel(),
    )


def probe(request: LoadRequest, samples: int) -> Dict[str, List[float]]:
    """Return ``read_s``, ``decode_s`` and ``transform_s`` of each of the first ``samples`` ids, and
    the clock as each began: ``read_at``, ``decode_at``, ``transform_at``.

    One process, one sample at a time, nothing overlaps: the shares of a sample's time.  A stretch
    of them is read before its first is decoded: a device with a rate limit, or one that reads
    ahead, would else recover during each decode, and a slower decode would look like a faster read.
    """
    transforms.single_thread()
    transform = transforms.transform(request.transform)
    by = registry.decoder(request.decoder)
    reader = request.format.open(request.dataset, request.root)
    row = np.empty(transform.shape, np.float32)
    readings: Dict[str, List[Tuple[float, float]]] = {"read": [], "decode": [], "transform": []}
    wanted = np.asarray(request.ids)[:samples].tolist()
    sample = -1
    try:
        for first in range(0, len(wanted), STRETCH):
            stretch, every = wanted[first : first + STRETCH], []
            for sample in stretch:
                start = clock()
                every.append(reader.read(sample)[0])
                touch(every[-1])
                readings["read"].append((start, clock()))
            for sample, stored in zip(stretch, every):
                start = clock()
                pixels = transforms.decode(stored, by=by, delay_s=request.decode_delay_s)
                decoded = clock()
                random = transforms.SampleRandom(request.seed, request.epoch, sample)
                transform.apply(pixels, random, row)
                readings["transform"].append((decoded, clock()))
                readings["decode"].append((start, decoded))
            del every, stored
    except (DatasetError, OSError, ValueError) as error:
        raise DatasetError(at(request, sample, error)) from error
    reader.close()
    times: Dict[str, List[float]] = {}
    for part, found in readings.items():
        times[f"{part}_s"] = [ended - begun for begun, ended in found]
        times[f"{part}_at"] = [begun for begun, _ in found]
    return times


def at(request: LoadRequest, sample: int, error: Exception) -> str:
    """Return one line that names the sample and says what is wrong with it."""
    text = " ".join(plain(error).split())
    return f"sample {sample} of {request.root}: {text}"
