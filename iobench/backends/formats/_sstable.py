"""LevelDB's files: a folder in which a database may be opened, and where its records lie.

LevelDB has no way to open for reading only: it locks the folder, writes a log and a new manifest,
and refuses a second process.  :func:`shadow` gives each reader a folder of its own, of links to the
tables.  The tables' layout: doc/table_format.md of LevelDB.
"""

from __future__ import annotations

import bisect
import os
import shutil
import struct
import tempfile
from multiprocessing import util
from pathlib import Path
from typing import List, NamedTuple, Tuple

from iobench.backends.formats._datum import read_varint
from iobench.core.cases import Extent
from iobench.core.errors import DatasetError

TABLE = "*.ldb"
_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
#: After a block: how it is compressed, and a checksum.
_TRAILER_BYTES = 5
#: After a user's key: sequence number and kind.
_INTERNAL_BYTES = 8


def tables(root: Path) -> List[Path]:
    """Return the files that hold the records, in the order in which they were made."""
    return sorted(root.glob(TABLE))


def shadow(root: Path) -> Path:
    """Return a new folder with links to the tables of the database ``root``, to be opened there.

    The small files that say what is in it are copied.  It is removed when this process ends, if
    :func:`remove` does not do so before.
    """
    folder = Path(tempfile.mkdtemp(prefix="iobench-leveldb-"))
    util.Finalize(None, remove, (folder,), exitpriority=1)  # not in a child that inherits it
    for path in root.iterdir():
        if path.suffix == Path(TABLE).suffix:
            (folder / path.name).symlink_to(path.absolute())
        elif path.name.startswith(("CURRENT", "MANIFEST")) or path.suffix == ".log":
            shutil.copyfile(path, folder / path.name)
    if not (folder / "CURRENT").exists():
        remove(folder)
        raise DatasetError(f"{root} is no LevelDB (no file CURRENT): convert again")
    return folder


def remove(folder: Path) -> None:
    """Remove what :func:`shadow` made.  Idempotent."""
    shutil.rmtree(folder, ignore_errors=True)


class _Table(NamedTuple):
    path: Path
    first: bytes  # key of its first record
    ends: List[bytes]  # of each block: a key not before its last and before the next block's first
    blocks: List[Tuple[int, int]]  # offset, length with the trailer


class Blocks:
    """Where each record of a database lies: the index of every table, read once."""

    def __init__(self, root: Path) -> None:
        """Raises DatasetError for a file that is no table, or whose index is compressed."""
        self._tables = sorted((_table(path) for path in tables(root)), key=lambda t: t.first)
        self._firsts = [table.first for table in self._tables]

    def extent(self, prefix: bytes) -> Extent:
        """Return the block that holds the one record whose key begins with ``prefix``.

        Raises DatasetError when no table can hold it.
        """
        at = bisect.bisect_right(self._firsts, prefix + b"\xff") - 1
        if at < 0:
            raise DatasetError(f"no record {prefix!r} in that LevelDB: convert again")
        table = self._tables[at]
        block = bisect.bisect_left(table.ends, prefix)
        if block == len(table.ends):
            raise DatasetError(f"no record {prefix!r} in {table.path}: convert again")
        return Extent(str(table.path), *table.blocks[block])


def _table(path: Path) -> _Table:
    with open(path, "rb") as file:
        fd = file.fileno()
        footer = os.pread(fd, _FOOTER_BYTES, max(os.fstat(fd).st_size - _FOOTER_BYTES, 0))
        if len(footer) < _FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
            raise DatasetError(f"{path} is no table of a LevelDB: convert again")
        _, _, where = _handle(footer, 0)
        offset, length, _ = _handle(footer, where)
        index = os.pread(fd, length + _TRAILER_BYTES, offset)
        if len(index) < length + _TRAILER_BYTES or index[length] != 0:
            raise DatasetError(f"{path} has an index that is compressed or cut short")
        ends, blocks = [], []
        for key, value in _entries(index[:length]):
            start, count, _ = _handle(value, 0)
            ends.append(key[:-_INTERNAL_BYTES])
            blocks.append((start, count + _TRAILER_BYTES))
        head = os.pread(fd, 4096, blocks[0][0])
    key_bytes, at = read_varint(head, read_varint(head, 0)[1])
    _, at = read_varint(head, at)
    return _Table(path, head[at : at + key_bytes - _INTERNAL_BYTES], ends, blocks)


def _entries(block: bytes) -> List[Tuple[bytes, bytes]]:
    """Return the (key, value) pairs of a block: keys share the beginning of the one before."""
    restarts = struct.unpack("<I", block[-4:])[0]
    end = len(block) - 4 * (restarts + 1)
    found = []
    key = b""
    at = 0
    while at < end:
        shared, at = read_varint(block, at)
        own, at = read_varint(block, at)
        length, at = read_varint(block, at)
        key = key[:shared] + block[at : at + own]
        at += own
        found.append((key, block[at : at + length]))
        at += length
    return found


def _handle(data: bytes, at: int) -> Tuple[int, int, int]:
    """Return (offset, length, where it ends) of a block handle."""
    offset, at = read_varint(data, at)
    length, at = read_varint(data, at)
    return offset, length, at
