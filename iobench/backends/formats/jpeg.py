"""One JPEG file a sample in a folder a class: the ImageFolder layout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence, Tuple

from iobench.core.cases import Dataset, Extent
from iobench.core.dataset import load_index
from iobench.core.errors import DatasetError
from iobench.core.members import FormatBackend
from iobench.core.protocols import Reader, StoredSample


class JpegReader(Reader):
    """Opens, reads and closes one file a sample; holds no handle, so a fork shares nothing."""

    def __init__(self, dataset: Dataset, root: Path) -> None:
        index = load_index(dataset)
        self._root = str(root)
        self._files = index.files
        self._labels = index.labels

    def __len__(self) -> int:
        return len(self._files)

    def __deepcopy__(self, memo: Dict[int, Any]) -> JpegReader:
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


class JpegFormat:
    """Writes and opens a tree of JPEG files."""

    def write(self, samples: Iterable[StoredSample], root: Path) -> None:
        """Write ``<root>/<key>.jpg`` for every sample."""
        for sample in samples:
            path = root / f"{sample.key}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(sample.data)

    def open(self, dataset: Dataset, root: Path) -> JpegReader:
        """Return a reader; the index is loaded here, the files one by one."""
        return JpegReader(dataset, root)

    def files(self, dataset: Dataset, root: Path) -> List[Path]:
        """Return every JPEG file, in id order."""
        return [root / name for name in load_index(dataset).files]


BACKEND = FormatBackend(
    JpegFormat, "one JPEG file a sample, a folder a class (ImageFolder)", per_file=True
)
