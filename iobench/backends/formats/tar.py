"""WebDataset shards: tar files of ``NNNNNNNN.jpg`` and ``NNNNNNNN.cls`` members.

An index of offsets beside the shards lets a reader fetch one sample by one pread; loaders that
stream shards do not need it.
"""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Annotated, Any, Dict, Iterable, List, Sequence, Tuple

import numpy as np

from iobench.backends.formats._reader import ShardReader, stored_index
from iobench.core.cases import Dataset, Extent
from iobench.core.errors import DatasetError
from iobench.core.members import FormatBackend
from iobench.core.options import Range
from iobench.core.protocols import StoredSample

INDEX = "index.npy"  # int64 (samples, 4): shard, offset, length, label


class TarReader(ShardReader):
    """Reads samples out of shards by offset."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._index = stored_index(root / INDEX, "shards")
        super().__init__(len(self._index))

    def read(self, index: int) -> Tuple[bytes, int]:
        """Return (JPEG, label): bytes, by one pread.  Raises DatasetError on a short read."""
        shard, offset, length, label = map(int, self._index[index])
        data = os.pread(self._descriptor(shard), length, offset)
        if len(data) != length:
            raise DatasetError(f"{self._path(shard)} is shorter than its index says: convert again")
        return data, label

    def extents(self, index: int) -> Sequence[Extent]:
        """Return the member's bytes, without the tar headers around them."""
        shard, offset, length, _ = map(int, self._index[index])
        return (Extent(self._path(shard), offset, length),)

    def _path(self, shard: int) -> str:
        return f"{self._root}/{shard_name(shard)}"


class TarFormat:
    """Writes and opens shards.  ``shard_bytes``: a shard is closed when it reaches this size."""

    def __init__(self, *, shard_bytes: Annotated[int, Range(1, 1 << 50)] = 64 << 20) -> None:
        if shard_bytes < 1:
            raise DatasetError(f"shard_bytes = {shard_bytes}: at least 1 (one sample a shard)")
        self._shard_bytes = shard_bytes

    @property
    def layout(self) -> Dict[str, Any]:
        """Options that shape what is written."""
        return {"shard_bytes": self._shard_bytes}

    def write(self, samples: Iterable[StoredSample], root: Path) -> None:
        """Write the shards, then their index."""
        rows: List[Tuple[int, int, int, int]] = []
        stream = iter(samples)
        sample = next(stream, None)
        shard = 0
        while sample is not None:
            with tarfile.open(root / shard_name(shard), "w", format=tarfile.USTAR_FORMAT) as tar:
                while sample is not None and tar.offset < self._shard_bytes:
                    offset = _add(tar, f"{sample.id:08d}.jpg", sample.data)
                    _add(tar, f"{sample.id:08d}.cls", str(sample.label).encode())
                    rows.append((shard, offset, len(sample.data), sample.label))
                    sample = next(stream, None)
            shard += 1
        np.save(root / INDEX, np.array(rows, np.int64).reshape(-1, 4))

    def open(self, dataset: Dataset, root: Path) -> TarReader:
        """Return a reader; shards are opened when they are first read."""
        return TarReader(root)

    def files(self, dataset: Dataset, root: Path) -> List[Path]:
        """Return every shard, in id order."""
        return sorted(root.glob("shard-*.tar"))


def shard_name(shard: int) -> str:
    """Return the file name of a shard."""
    return f"shard-{shard:06d}.tar"


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> int:
    """Append a member and return the offset of its bytes (a USTAR header is one block)."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    member.mode = 0o644
    offset = tar.offset + tarfile.BLOCKSIZE
    tar.addfile(member, io.BytesIO(data))
    return offset


BACKEND = FormatBackend(TarFormat, "WebDataset shards: tar files of JPEG and class members")
