"""Caffe's LevelDB, its older database: the messages and keys of ``formats/lmdb``.

Tables are written without compression: the bytes on disk are the samples' own (Caffe's tools
compress by Snappy, which leaves JPEG bytes as they are).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Iterable, List, Sequence, Tuple

from iobench.backends.formats import _sstable
from iobench.backends.formats._datum import datum, key_of, stored_in
from iobench.backends.formats._reader import LazyReader
from iobench.core.cases import Dataset, Extent
from iobench.core.errors import DatasetError
from iobench.core.members import FormatBackend
from iobench.core.protocols import StoredSample

#: What is written before a table is made of it.
_BUFFER_BYTES = 64 << 20
#: Databases of a parent process, kept from the destructor, which waits for threads not here.
_INHERITED: List[Any] = []


class LevelDbReader(LazyReader):
    """Reads samples through LevelDB, in a folder of links of its own (it writes where it opens)."""

    def __init__(self, root: Path, samples: int) -> None:
        super().__init__(samples)
        self._root = root

    def read(self, index: int) -> Tuple[Any, int]:
        """Return (data, label): a view of a copy of the JPEG, or (h, w, 3) uint8 RGB."""
        iterator = self._handles()[2]
        prefix = self._prefix(index)
        iterator.seek(prefix)
        if not iterator.valid() or not iterator.key().startswith(prefix):
            raise DatasetError(f"{self._root} has no sample {index}: it has {self._samples}")
        return stored_in(iterator.value())

    def extents(self, index: int) -> Sequence[Extent]:
        """Return the block that holds the message: all of it is read for any record in it."""
        return (self._blocks.extent(self._prefix(index)),)

    @functools.cached_property
    def _blocks(self) -> _sstable.Blocks:
        return _sstable.Blocks(self._root)

    def _prefix(self, index: int) -> bytes:
        if not 0 <= index < self._samples:
            raise DatasetError(f"{self._root} has no sample {index}: it has {self._samples}")
        return b"%08d_" % index

    def _open(self) -> Tuple[Path, Any, Any]:
        import plyvel

        folder = _sstable.shadow(self._root)
        try:
            database = plyvel.DB(str(folder))
        except plyvel.Error as error:
            _sstable.remove(folder)
            raise DatasetError(f"cannot open {self._root}: {error}; convert again") from None
        return folder, database, database.raw_iterator()

    def _end(self, opened: Any) -> None:
        folder, database, iterator = opened
        iterator.close()
        database.close()
        _sstable.remove(folder)

    def _leave(self, opened: Any) -> None:
        _INHERITED.append(opened)  # to end it would be the parent's


class LevelDbFormat:
    """Writes and opens Caffe's LevelDB."""

    def write(self, samples: Iterable[StoredSample], root: Path) -> None:
        """Write the database, keys ascending, and merge it into sorted tables of one level."""
        import plyvel

        database = plyvel.DB(
            str(root), create_if_missing=True, compression=None, write_buffer_size=_BUFFER_BYTES
        )
        try:
            for sample in samples:
                database.put(key_of(sample), datum(sample))
            database.compact_range()  # what is in the log goes to a table, too
        finally:
            database.close()
        for name in ("LOCK", "LOG", "LOG.old"):
            (root / name).unlink(missing_ok=True)

    def open(self, dataset: Dataset, root: Path) -> LevelDbReader:
        """Return a reader; the database is opened by the first read."""
        return LevelDbReader(root, dataset.samples)

    def files(self, dataset: Dataset, root: Path) -> List[Path]:
        """Return the tables."""
        return _sstable.tables(root)


BACKEND = FormatBackend(
    LevelDbFormat,
    "Caffe's LevelDB: encoded or raw Datum messages in sorted tables",
    requires=("plyvel",),
    contents=frozenset({"jpeg", "raw"}),
)
