"""TFRecord files of ``tf.train.Example``: TensorFlow's own, with ImageNet's names of features.

A reader fetches one record by one pread, from an index of offsets beside the files, and verifies
its checksum as TensorFlow does.
"""

from __future__ import annotations

import itertools
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterable, List, Sequence, Tuple

import numpy as np

from iobench.backends.formats._example import example
from iobench.backends.formats._reader import ShardReader, stored_index
from iobench.core.cases import Dataset, Extent
from iobench.core.errors import DatasetError
from iobench.core.members import FormatBackend
from iobench.core.options import Count
from iobench.core.protocols import StoredSample

#: The one file, or each of several; int64 (samples, 4): offset, bytes of it, JPEG, label.
DATA, SHARD, INDEX = "data.tfrecord", "data-{:06d}.tfrecord", "index.npy"
SHARDS = "data-*.tfrecord"
#: Before a record's data: its length, and the checksum of these eight bytes; after it: its own.
_HEAD, _TAIL = struct.Struct("<QI"), struct.Struct("<I")
_MASK = 0xA282EAD8


class TfrecordReader(ShardReader):
    """Reads records by offset; the JPEG is the last thing in each."""

    def __init__(self, root: Path, each: int) -> None:
        self._root, self._each = str(root), each
        self._index = stored_index(root / INDEX, "records")
        super().__init__(len(self._index))

    def read(self, index: int) -> Tuple[memoryview, int]:
        """Return (JPEG, label): a view of the record.

        Raises DatasetError where the record is damaged.
        """
        offset, length, jpeg, label = map(int, self._index[index])
        size, shard = _HEAD.size + length + _TAIL.size, self._shard(index)
        record = os.pread(self._descriptor(shard), size, offset)
        if len(record) != size:
            raise DatasetError(f"{self._path(shard)} is shorter than its index says: convert again")
        data = record[_HEAD.size : -_TAIL.size]
        if _TAIL.unpack(record[-_TAIL.size :])[0] != masked(data):
            raise DatasetError(f"{self._path(shard)} is damaged at byte {offset}: convert again")
        return memoryview(data)[length - jpeg :], label

    def extents(self, index: int) -> Sequence[Extent]:
        """Return the bytes of the whole record."""
        offset, length = map(int, self._index[index][:2])
        path = self._path(self._shard(index))
        return (Extent(path, offset, _HEAD.size + length + _TAIL.size),)

    def _shard(self, index: int) -> int:
        return index // self._each if self._each else 0

    def _path(self, shard: int) -> str:
        return f"{self._root}/{file_name(shard, self._each)}"


def file_name(shard: int, each: int) -> str:
    """Return the name of a file of ``each`` samples (0: of the only one)."""
    return SHARD.format(shard) if each else DATA


class TfrecordFormat:
    """Writes and opens the files.  ``shard``: samples in each (0: one file holds all)."""

    def __init__(self, *, shard: Count = 0) -> None:
        self._each = shard

    @property
    def layout(self) -> Dict[str, Any]:
        """Options that shape what is written; one file is how it always was."""
        return {"shard": self._each} if self._each else {}

    def write(self, samples: Iterable[StoredSample], root: Path) -> None:
        """Write the records, then their index."""
        rows: List[Tuple[int, int, int, int]] = []
        stream = iter(samples)
        first = next(stream, None)
        for shard in itertools.count():
            some = [] if first is None else [first]
            rest = itertools.islice(stream, self._each - 1) if self._each else stream
            with open(root / file_name(shard, self._each), "wb") as file:
                rows += [_written(file, sample) for sample in itertools.chain(some, rest)]
            if (first := next(stream, None)) is None:
                break
        np.save(root / INDEX, np.array(rows, np.int64).reshape(-1, 4))

    def open(self, dataset: Dataset, root: Path) -> TfrecordReader:
        """Return a reader; a file is opened by the first read."""
        return TfrecordReader(root, self._each)

    def files(self, dataset: Dataset, root: Path) -> List[Path]:
        """Return the files of records."""
        return sorted(root.glob(SHARDS)) or [root / DATA]


def _written(file: BinaryIO, sample: StoredSample) -> Tuple[int, int, int, int]:
    """Append a record and return its row of the index."""
    data = example(bytes(sample.data), sample.label, sample.id)
    head, offset = struct.pack("<Q", len(data)), file.tell()
    file.write(head + _TAIL.pack(masked(head)) + data + _TAIL.pack(masked(data)))
    return offset, len(data), len(sample.data), sample.label


def masked(data: bytes) -> int:
    """Return a record's checksum: its CRC-32C, turned by 15 bits, plus a constant."""
    import google_crc32c

    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


BACKEND = FormatBackend(
    TfrecordFormat,
    "TFRecord: files of tf.train.Example records, with checksums",
    requires=("google_crc32c",),
    libraries={"google_crc32c": "google-crc32c"},
)
