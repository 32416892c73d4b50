"""One HDF5 file: variable-length JPEG bytes in ``jpeg``, or pixels of one size in ``pixels``.

Content ``float`` is Caffe's own layout, in several files: :mod:`iobench.backends.caffe.hdf5`.

Layout that ``extents`` reports: HDF5 File Format Specification 3.0, III.E (global heap).
"""

from __future__ import annotations

import itertools
import os
import struct
from pathlib import Path
from typing import Annotated, Any, Dict, Iterable, List, Literal, Mapping, Sequence, Tuple

import numpy as np

from iobench.backends.caffe import hdf5 as caffe_layout
from iobench.backends.formats._reader import LazyReader
from iobench.core.cases import Case, Dataset, Extent
from iobench.core.errors import DatasetError, SpecError
from iobench.core.members import FormatBackend
from iobench.core.options import Count, Range
from iobench.core.protocols import Reader, StoredSample

DATA = "data.h5"
DRIVERS = ("sec2", "core")
COMPRESSIONS = ("", "gzip", "lzf")
#: Variable-length references a chunk, where the user names no chunk.
REFERENCES = 1024
#: A variable-length element on disk: length, address of its heap collection, index in there.
_REFERENCE = struct.Struct("<IQI")
#: A heap collection begins with its signature, version, and size in bytes.
_COLLECTION = struct.Struct("<4sB3xQ")
_SMALLEST_COLLECTION = 4096


class Hdf5Reader(LazyReader):
    """Reads samples one by one through the HDF5 library."""

    def __init__(
        self, root: Path, samples: int, driver: str, cache_bytes: int, readahead: bool
    ) -> None:
        super().__init__(samples)
        self._path = str(root / DATA)
        self._driver = driver
        self._cache_bytes = cache_bytes
        self._readahead = readahead

    def read(self, index: int) -> Tuple[Any, int]:
        """Return (data, label): a view of JPEG bytes, or (h, w, 3) uint8."""
        _, dataset, labels = self._handles()
        data = dataset[index]
        return (data.data if data.ndim == 1 else data), int(labels[index])

    def extents(self, index: int) -> Sequence[Extent]:
        """Return the ranges that the library must fetch.

        Variable length: the 16-byte reference, then the whole heap collection that holds the bytes,
        in two reads as the library makes them: its smallest size, which tells the real one, and the
        rest.  A collection may hold several samples while they fit into 64 KiB (read amplification
        that is HDF5's own).  Pixels: the chunk.
        """
        dataset = self._handles()[1]
        chunk = dataset.chunks[0]
        start = index - index % chunk
        where = dataset.id.get_chunk_info_by_coord((start,) + (0,) * (dataset.ndim - 1))
        if dataset.ndim > 1:
            return (Extent(self._path, where.byte_offset, where.size),)
        offset = where.byte_offset + (index - start) * _REFERENCE.size
        with open(self._path, "rb", buffering=0) as file:
            _, address, _ = _REFERENCE.unpack(os.pread(file.fileno(), _REFERENCE.size, offset))
            head = os.pread(file.fileno(), _COLLECTION.size, address)
        signature, _, size = _COLLECTION.unpack(head)
        if signature != b"GCOL":
            raise DatasetError(f"{self._path}: no heap at {address}: convert again")
        first = Extent(self._path, address, _SMALLEST_COLLECTION)
        rest = Extent(self._path, address + first.length, size - first.length)
        reference = Extent(self._path, offset, _REFERENCE.size)
        return (reference, first, rest) if rest.length else (reference, first)

    def _end(self, opened: Any) -> None:
        opened[0].close()

    _leave = _end  # else the library would go on using the handle

    def _open(self) -> Tuple[Any, Any, Any]:
        driver = None if self._driver == "sec2" else self._driver
        file = caffe_layout.opened(self._path, self._cache_bytes, driver=driver)
        if not self._readahead and self._driver == "sec2":
            os.posix_fadvise(file.id.get_vfd_handle(), 0, 0, os.POSIX_FADV_RANDOM)
        return file, file["jpeg" if "jpeg" in file else "pixels"], file["label"][:]


class Hdf5Format:
    """Writes and opens an HDF5 file.

    ``driver``: sec2 (POSIX) or core (the whole file is read at opening); stdio is left out, its
    file position is shared across a fork.
    """

    def __init__(
        self,
        *,
        chunk: Count = 0,  # samples a chunk (0: one image of pixels, 1024 references)
        compression: Literal[
            "", "gzip", "lzf"
        ] = "",  # of pixels: JPEG bytes lie in the heap, where no filter reaches
        cache_bytes: Annotated[int, Range(0, 1 << 40)] = 1 << 20,  # the chunk cache (rdcc_nbytes)
        driver: Literal["sec2", "core"] = "sec2",
        readahead: bool = True,  # past what is asked for (off: POSIX_FADV_RANDOM; sec2)
        shard: Count = 0,  # samples a file of float content (0: 128)
    ) -> None:
        for name, value, allowed in (
            ("compression", compression, COMPRESSIONS),
            ("driver", driver, DRIVERS),
        ):
            if value not in allowed:
                raise DatasetError(
                    f"{name} = {value!r}: allowed are {', '.join(map(repr, allowed))}"
                )
        if min(chunk, cache_bytes, shard) < 0:
            raise DatasetError(
                f"chunk = {chunk}, cache_bytes = {cache_bytes}, shard = {shard}: none is negative"
            )
        self._shard = shard
        self._chunk = chunk
        self._compression = compression
        self._cache_bytes = cache_bytes
        self._driver = driver
        self._readahead = readahead

    @property
    def layout(self) -> Dict[str, Any]:
        """Options that shape what is written."""
        shard = {"shard": self._shard} if self._shard else {}
        return {"chunk": self._chunk, "compression": self._compression, **shard}

    def write(self, samples: Iterable[StoredSample], root: Path) -> None:
        """Write ``data.h5``, or Caffe's files for (3, h, w) float32.

        Raises DatasetError for pixels of several sizes.
        """
        import h5py

        stream = iter(samples)
        first = next(stream, None)
        if first is None:
            raise DatasetError("no samples to write")
        raw = isinstance(first.data, np.ndarray)
        if raw and first.data.dtype == np.float32:
            if self._chunk or self._compression:
                raise DatasetError(
                    "float content lies in one piece, as Caffe's own tools write it: leave chunk "
                    "and compression out"
                )
            each = self._shard or caffe_layout.SAMPLES
            caffe_layout.write(itertools.chain((first,), stream), root, each)
            return
        if self._shard:
            raise DatasetError(f"shard = {self._shard} is of float content alone: leave it out")
        if self._compression and not raw:
            raise DatasetError(
                f"compression = {self._compression!r} needs raw content: JPEG bytes of variable "
                f"length lie in HDF5's heap, which filters do not reach"
            )
        with h5py.File(root / DATA, "w") as file:
            shape = first.data.shape if raw else ()
            data = file.create_dataset(
                "pixels" if raw else "jpeg",
                shape=(0, *shape),
                maxshape=(None, *shape),
                dtype=np.uint8 if raw else h5py.vlen_dtype(np.uint8),
                chunks=(self._chunk or (1 if raw else REFERENCES), *shape),
                compression=self._compression or None,
            )
            labels: List[int] = []
            for count, sample in enumerate(itertools.chain((first,), stream)):
                if count == data.shape[0]:
                    data.resize(max(2 * count, REFERENCES), axis=0)
                if raw and sample.data.shape != data.shape[1:]:
                    raise DatasetError(f"sample {sample.key} is {sample.data.shape}, not one size")
                data[count] = sample.data if raw else np.frombuffer(sample.data, np.uint8)
                labels.append(sample.label)
            data.resize(len(labels), axis=0)
            file.create_dataset("label", data=np.array(labels, np.int64))

    def open(self, dataset: Dataset, root: Path) -> Reader:
        """Return a reader; the file is opened by the first read."""
        if not (root / DATA).exists() and caffe_layout.files(root):
            return caffe_layout.FloatReader(root, dataset.samples, self._cache_bytes)
        return Hdf5Reader(root, dataset.samples, self._driver, self._cache_bytes, self._readahead)

    def files(self, dataset: Dataset, root: Path) -> List[Path]:
        """Return the file, or Caffe's files."""
        return caffe_layout.files(root) or [root / DATA]


def _judge(case: Case) -> None:
    asked, content = case.format_options, case.content
    if content == "float" and (asked.get("chunk") or asked.get("compression")):
        raise SpecError("chunk and compression are not of float content: leave them out")
    if content != "float" and asked.get("shard"):
        raise SpecError(f"shard = {asked['shard']} is of float content alone: leave it out")
    if content == "jpeg" and asked.get("compression"):
        raise SpecError(
            f"compression = {asked['compression']!r} needs raw content: leave it out, or write "
            "hdf5-raw"
        )


def _unused(case: Case) -> Mapping[str, str]:
    if case.format_options.get("driver") == "core":
        return {"format_options.readahead": "driver core reads the whole file when opening it"}
    return {}


BACKEND = FormatBackend(
    Hdf5Format,
    "HDF5: variable-length JPEG bytes, chunks of pixels, or Caffe's files of floats",
    requires=("h5py",),
    contents=frozenset({"jpeg", "raw", "float"}),
    shared=frozenset({"jpeg"}),
    judge=_judge,
    unused=_unused,
)
