"""One ArrayRecord file of ``tf.train.Example``, as TensorFlow Datasets writes it for Grain.

One record a chunk (``group_size:1``), as the library's authors ask where records are read in any
order: one chunk is read, and its checksums verified, for each sample.  Uncompressed: JPEGs do not
become smaller.  An index beside the file has the place of each chunk, which the library does not
tell; a reader does not need it to find a record.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO, Iterable, List, Sequence, Tuple

import numpy as np

from iobench.backends.formats._example import example
from iobench.backends.formats._reader import LazyReader, stored_index
from iobench.core.cases import Dataset, Extent
from iobench.core.errors import DatasetError
from iobench.core.members import FormatBackend
from iobench.core.protocols import StoredSample

#: The file; int64 (samples, 4): offset of the chunk, its bytes, those of the JPEG, label.
DATA, INDEX = "data.array_record", "index.npy"
_WRITE = "group_size:1,uncompressed"
#: One chunk a read, on the calling thread: the library's advice for reading in any order.
_READ = "readahead_buffer_size:0,max_parallelism:0"
#: A file is divided into blocks, each of which begins with a header that no chunk's data hold.
_BLOCK, _BLOCK_HEAD = 1 << 16, 24
#: Before a chunk's data: checksum, bytes of the data, checksum of these, kind and records, bytes.
_CHUNK = struct.Struct("<5Q")


class ArrayRecordReader(LazyReader):
    """Reads records by number with the library; the JPEG is the last thing in each."""

    def __init__(self, root: Path) -> None:
        self._path = str(root / DATA)
        self._index = stored_index(root / INDEX, "records")
        super().__init__(len(self._index))

    def read(self, index: int) -> Tuple[memoryview, int]:
        """Return (JPEG, label): a view of the record.

        Raises DatasetError where the file is gone or damaged.
        """
        try:  # a range: by a list of numbers a read takes 5 ns for every record of the file, too
            (record,) = self._handles().read(index, index + 1)
        except (RuntimeError, IndexError) as error:
            raise DatasetError(f"{self._path}: {error}; convert again") from None
        jpeg, label = map(int, self._index[index, 2:])
        return memoryview(record)[len(record) - jpeg :], label

    def extents(self, index: int) -> Sequence[Extent]:
        """Return the bytes of the record's chunk, block headers among them."""
        offset, length = map(int, self._index[index, :2])
        return (Extent(self._path, offset, length),)

    def _open(self) -> Any:
        from array_record.python import array_record_module

        opened = array_record_module.ArrayRecordReader(self._path, _READ)
        if opened.num_records() != len(self):
            raise DatasetError(f"{self._path} has not {len(self)} records: convert again")
        return opened

    def _end(self, opened: Any) -> None:
        opened.close()


class ArrayRecordFormat:
    """Writes and opens the file."""

    def write(self, samples: Iterable[StoredSample], root: Path) -> None:
        """Write the records, then an index of them: the library does not tell where they are."""
        from array_record.python import array_record_module

        rows: List[Tuple[int, int]] = []
        writer = array_record_module.ArrayRecordWriter(str(root / DATA), _WRITE)
        try:
            for sample in samples:
                writer.write(example(bytes(sample.data), sample.label, sample.id))
                rows.append((len(sample.data), sample.label))
            writer.close()
        except RuntimeError as error:
            raise DatasetError(f"cannot write {root / DATA}: {error}") from error
        places = np.array(chunks(root / DATA), np.int64)
        starts, ends = places[:-1], places[1:]
        np.save(root / INDEX, np.column_stack([starts, ends - starts, np.array(rows, np.int64)]))

    def open(self, dataset: Dataset, root: Path) -> ArrayRecordReader:
        """Return a reader; the file is opened by the first read."""
        return ArrayRecordReader(root)

    def files(self, dataset: Dataset, root: Path) -> List[Path]:
        """Return the file."""
        return [root / DATA]


def chunks(path: Path) -> List[int]:
    """Return where each chunk of records begins, and where the last one ends.

    They are in the footer, behind the last one; where that begins is in the file's last block.
    Raises DatasetError where they are not.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        try:
            footer = _first(_records(file, size - _BLOCK, size)[0])
            _, *each = _records(file, footer, size - _BLOCK)
        except (IndexError, OSError, ValueError, struct.error) as error:
            raise DatasetError(f"{path} has no footer of ArrayRecord: {error}") from error
    return [*map(_first, each), footer]


def plain(raw: bytes, offset: int) -> bytes:
    """Return bytes that begin at this offset of a file, without the headers of its blocks."""
    first = -offset % _BLOCK
    blocks = range(first, len(raw), _BLOCK)
    return b"".join([raw[:first], *(raw[k + _BLOCK_HEAD : k + _BLOCK] for k in blocks)])


def _records(file: BinaryIO, start: int, end: int) -> List[bytes]:
    """Return the records of an uncompressed chunk: their sizes come first, then their bytes."""
    file.seek(start)
    raw = plain(file.read(end - start), start)
    _, length, _, kind, _ = _CHUNK.unpack_from(raw)
    data = raw[_CHUNK.size : _CHUNK.size + length]
    if kind & 0xFF != ord("r") or data[0]:
        raise ValueError("it is compressed")
    _, at = _varint(data, 1)
    found = []
    sizes = []
    for _ in range(kind >> 8):
        size, at = _varint(data, at)
        sizes.append(size)
    for size in sizes:
        found.append(data[at : at + size])
        at += size
    return found


def _first(message: bytes) -> int:
    """Return the first field of a protocol buffer, a whole number."""
    return _varint(message, 1)[0]


def _varint(data: bytes, at: int) -> Tuple[int, int]:
    """Return the whole number there, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


BACKEND = FormatBackend(
    ArrayRecordFormat,
    "ArrayRecord: one file of tf.train.Example records, one record a chunk, with checksums",
    requires=("array_record",),
    libraries={"array_record": "array-record"},
)
