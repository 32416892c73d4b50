"""Reads samples of which each is a whole file: what such formats share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, Sequence, Tuple

from iobench.core.cases import Extent
from iobench.core.errors import DatasetError
from iobench.core.protocols import Reader


class FileReader(Reader):
    """Opens, reads and closes one file a sample; holds no handle, so a fork shares nothing."""

    def __init__(self, root: Path, files: Sequence[str], labels: Any) -> None:
        self._root, self._files, self._labels = str(root), files, labels

    def __len__(self) -> int:
        return len(self._files)

    def __deepcopy__(self, memo: Dict[int, Any]) -> FileReader:
        """Return this one: nothing changes in it, and the index of millions is large."""
        return self

    def read(self, index: int) -> Tuple[bytes, int]:
        """Return (file, label): bytes.

        One read of the exact size: a larger buffer costs five times as much warm, because the
        allocator maps and unmaps it each time.  Raises DatasetError when the file is gone.
        """
        path = self._path(index)
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise DatasetError(f"cannot open {path}: {error.strerror}; restore the file") from None
        try:
            size = os.fstat(fd).st_size
            data = os.read(fd, size)
            while len(data) < size:  # a network filesystem may return less
                more = os.read(fd, size - len(data))
                if not more:
                    raise DatasetError(f"{path} shrank while it was read: make the dataset again")
                data += more
        finally:
            os.close(fd)
        return data, int(self._labels[index])

    def extents(self, index: int) -> Sequence[Extent]:
        """Return the whole file."""
        path = self._path(index)
        return (Extent(path, 0, os.stat(path).st_size),)

    def _path(self, index: int) -> str:
        return f"{self._root}/{self._files[index]}"
