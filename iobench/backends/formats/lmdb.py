"""Caffe's LMDB: one ``Datum`` message a key ``%08d_<name>``, as convert_imageset writes it.

What a message holds: :mod:`iobench.backends.formats._datum`.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from iobench.backends.formats._datum import datum, key_of, stored_in
from iobench.backends.formats._reader import LazyReader
from iobench.core.cases import Dataset, Extent
from iobench.core.errors import DatasetError
from iobench.core.members import FormatBackend
from iobench.core.protocols import StoredSample

DATA = "data.mdb"
COMMIT_BYTES = 64 << 20  # that a write transaction collects


class _Shared:
    """The environments that are open in this process, and how many readers use each.

    LMDB allows an environment to be open once in a process; threads have a reader each.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Dict[Tuple[Any, ...], List[Any]] = {}

    def take(self, root: str, **options: Any) -> Tuple[Tuple[Any, ...], Any]:
        """Return a key to give back, and the environment.  Raises lmdb.Error."""
        import lmdb

        key = (os.getpid(), root, *sorted(options.items()))
        with self._lock:
            for other in [k for k in self._open if k[0] != key[0]]:
                del self._open[other]  # a fork inherited it: LMDB forbids its use in the child
            if key not in self._open:
                environment = lmdb.open(
                    root, readonly=True, create=False, max_spare_txns=1, **options
                )
                self._open[key] = [environment, 0]
            self._open[key][1] += 1
            return key, self._open[key][0]

    def give_back(self, key: Tuple[Any, ...]) -> None:
        """Close the environment when this was its last reader."""
        with self._lock:
            entry = self._open.get(key)
            if entry is not None:
                entry[1] -= 1
                if not entry[1]:
                    del self._open[key]
                    entry[0].close()


_SHARED = _Shared()


class LmdbReader(LazyReader):
    """Reads samples through LMDB's memory map, by a read transaction of its own."""

    def __init__(self, root: Path, samples: int, readahead: bool, lock: bool) -> None:
        super().__init__(samples)
        self._root = str(root)
        self._readahead = readahead
        self._lock = lock
        self._base: Optional[int] = None  # where this process maps the file

    def read(self, index: int) -> Tuple[Any, int]:
        """Return (data, label): a view of the JPEG in the map, or (h, w, 3) uint8 RGB.

        The view is not copied, as a decoder needs no copy; its pages are read when they are
        touched, and it must not be used after :meth:`close`.
        """
        return stored_in(self._value(index))

    def extents(self, index: int) -> Sequence[Extent]:
        """Return the message's bytes in ``data.mdb``; the few pages of the tree are left out.

        The file is mapped whole from offset 0, so a value's address gives its offset.
        """
        value = self._value(index)
        address = int(np.frombuffer(value, np.uint8).ctypes.data)
        if self._base is None:
            self._base = _mapped_at(f"{self._root}/{DATA}")
        return (Extent(f"{self._root}/{DATA}", address - self._base, len(value)),)

    def walk(self) -> int:
        """Visit every record's key once, as Intel-Caffe does to shuffle; return how many there are.

        The pages of the tree are read, a record's own only where they lie beside them.
        """
        with self._handles()[1].cursor() as cursor:
            return sum(1 for _ in cursor.iternext(keys=True, values=False))

    def _value(self, index: int) -> Any:
        cursor = self._handles()[2]
        if not 0 <= index < self._samples or not cursor.set_range(b"%08d_" % index):
            raise DatasetError(f"{self._root} has no sample {index}: it has {self._samples}")
        return cursor.value()

    def _open(self) -> Tuple[Any, Any, Any]:
        import lmdb

        try:
            key, environment = _SHARED.take(self._root, lock=self._lock, readahead=self._readahead)
        except lmdb.Error as error:
            raise DatasetError(f"cannot open {self._root}: {error}; convert again") from None
        pages = 1 + environment.info()["last_pgno"]
        if os.path.getsize(f"{self._root}/{DATA}") < pages * environment.stat()["psize"]:
            _SHARED.give_back(key)  # its pages past the end would kill the process (SIGBUS)
            raise DatasetError(
                f"{self._root}/{DATA} was cut short; delete the folder, convert again"
            )
        self._base = None
        transaction = environment.begin(buffers=True)
        return key, transaction, transaction.cursor()

    def _end(self, opened: Any) -> None:
        key, transaction, cursor = opened
        cursor.close()
        transaction.abort()
        _SHARED.give_back(key)


class LmdbFormat:
    """Writes and opens Caffe's LMDB."""

    def __init__(self, *, readahead: bool = True, lock: bool = False) -> None:
        self._readahead = readahead  # let the kernel read around a page fault (off: MADV_RANDOM)
        self._lock = lock  # take part in LMDB's reader table: needs write access to the folder

    def write(self, samples: Iterable[StoredSample], root: Path) -> None:
        """Write ``data.mdb``, keys ascending, so that it is in id order on disk too.

        Raises DatasetError where it cannot be written (a full disk, a quota).
        """
        import lmdb

        try:
            self._write(samples, root)
        except lmdb.Error as error:
            raise DatasetError(
                f"cannot write {root / DATA}: {error}; free some space, or choose another --out"
            ) from error
        (root / "lock.mdb").unlink()  # readers open without it, or make their own

    def _write(self, samples: Iterable[StoredSample], root: Path) -> None:
        import lmdb

        environment = lmdb.open(str(root), map_size=1 << 30, sync=False, metasync=False)
        try:
            for pairs in _batches(samples):
                while True:
                    try:
                        with environment.begin(write=True) as transaction:
                            for key, value in pairs:
                                transaction.put(key, value, append=True)
                        break
                    except lmdb.MapFullError:
                        environment.set_mapsize(environment.info()["map_size"] * 2)
            environment.sync(True)
        finally:
            environment.close()

    def open(self, dataset: Dataset, root: Path) -> LmdbReader:
        """Return a reader; the environment is opened by the first read."""
        return LmdbReader(root, dataset.samples, self._readahead, self._lock)

    def files(self, dataset: Dataset, root: Path) -> List[Path]:
        """Return ``data.mdb``."""
        return [root / DATA]


def _batches(samples: Iterable[StoredSample]) -> Iterator[List[Tuple[bytes, bytes]]]:
    pairs: List[Tuple[bytes, bytes]] = []
    size = 0
    for sample in samples:
        pairs.append((key_of(sample), datum(sample)))
        size += len(pairs[-1][1])
        if size >= COMMIT_BYTES:
            yield pairs
            pairs, size = [], 0
    if pairs:
        yield pairs


def _mapped_at(path: str) -> int:
    """Return the address where this process maps ``path`` (proc(5), /proc/pid/maps)."""
    inode = str(os.stat(path).st_ino)
    with open("/proc/self/maps") as lines:
        for line in lines:
            fields = line.split(None, 5)
            if len(fields) == 6 and fields[4] == inode and fields[5].rstrip().endswith(DATA):
                return int(fields[0].split("-")[0], 16) - int(fields[2], 16)
    raise DatasetError(f"{path} is not mapped into this process: extents are unknown")


BACKEND = FormatBackend(
    LmdbFormat,
    "Caffe's LMDB: encoded or raw Datum messages, read through mmap",
    requires=("lmdb",),
    contents=frozenset({"jpeg", "raw"}),
    mapped=True,
    locking="lock",
)
