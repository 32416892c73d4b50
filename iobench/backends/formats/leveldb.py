"""Caffe's LevelDB, its older database: the messages and keys of :mod:`iobench.formats.lmdb`.

Tables are written without compression: the bytes on disk are the samples' own (Caffe's tools
compress by Snappy, which leaves JPEG bytes as they are).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from iobench import sstable
from iobench.datum import datum, key_of, parse_datum, pixels_of
from iobench.errors import DatasetError
from iobench.model import Dataset, Extent
from iobench.protocols import FormatBackend, StoredSample

#: What is written before a table is made of it.
_BUFFER_BYTES = 64 << 20
#: Databases of a parent process, kept from the destructor, which waits for threads not here.
_INHERITED: List[Any] = []


class LevelDbReader:
    """Reads samples through LevelDB, in a folder of links of its own (it writes where it opens)."""

    def __init__(self, root: Path, samples: int) -> None:
        self._root = root
        self._samples = samples
        self._forget()

    def _forget(self) -> None:
        self._pid = 0
        self._folder: Optional[Path] = None
        self._database: Any = None
        self._iterator: Any = None
        self._blocks: Optional[sstable.Blocks] = None

    def __len__(self) -> int:
        return self._samples

    def __getstate__(self) -> Dict[str, Any]:
        fresh = {"_pid": 0, "_folder": None, "_database": None, "_iterator": None, "_blocks": None}
        return {**self.__dict__, **fresh}

    def read(self, index: int) -> Tuple[Any, int]:
        """Return (data, label): a view of a copy of the JPEG, or (h, w, 3) uint8 RGB."""
        if self._pid != os.getpid():
            self._start()
        prefix = self._prefix(index)
        self._iterator.seek(prefix)
        if not self._iterator.valid() or not self._iterator.key().startswith(prefix):
            raise DatasetError(f"{self._root} has no sample {index}: it has {self._samples}")
        found = parse_datum(self._iterator.value())
        return (found.data if found.encoded else pixels_of(found)), found.label

    def extents(self, index: int) -> Sequence[Extent]:
        """Return the block that holds the message: all of it is read for any record in it."""
        if self._blocks is None:
            self._blocks = sstable.Blocks(self._root)
        return (self._blocks.extent(self._prefix(index)),)

    def close(self) -> None:
        """Close the database if this process opened it, and remove the links."""
        if self._database is not None and self._pid == os.getpid():
            self._iterator.close()
            self._database.close()
            if self._folder is not None:
                sstable.remove(self._folder)
        self._forget()

    def _prefix(self, index: int) -> bytes:
        if not 0 <= index < self._samples:
            raise DatasetError(f"{self._root} has no sample {index}: it has {self._samples}")
        return b"%08d_" % index

    def _start(self) -> None:
        import plyvel

        if self._database is not None:  # a fork inherited it: to end it would be the parent's
            _INHERITED.append((self._database, self._iterator))
        self._forget()
        self._folder = sstable.shadow(self._root)
        try:
            self._database = plyvel.DB(str(self._folder))
        except plyvel.Error as error:
            sstable.remove(self._folder)
            raise DatasetError(f"cannot open {self._root}: {error}; convert again") from None
        self._iterator = self._database.raw_iterator()
        self._pid = os.getpid()


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
        return sstable.tables(root)


BACKEND = FormatBackend(
    LevelDbFormat,
    "Caffe's LevelDB: encoded or raw Datum messages in sorted tables",
    requires=("plyvel",),
    contents=frozenset({"jpeg", "raw"}),
)
