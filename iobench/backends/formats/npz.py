"""One ``.npz`` file a sample: NumPy's own archive, as 3D U-Net's data are stored.

Each has two arrays, ``x`` (the sample's bytes) and ``y`` (its label); nothing is compressed, and
the archive's checksum is verified when it is read.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence, Tuple

import numpy as np

from iobench.core.cases import Dataset, Extent
from iobench.core.errors import DatasetError
from iobench.core.members import FormatBackend
from iobench.core.protocols import Reader, StoredSample

#: Files of one folder.
MANY = 1000


def name_of(sample: int) -> str:
    """Return the file of a sample, below the form's folder."""
    return f"{sample // MANY:06d}/{sample:08d}.npz"


class NpzReader(Reader):
    """Opens, reads and closes one archive a sample; holds no handle, so a fork shares nothing."""

    def __init__(self, root: Path, samples: int) -> None:
        self._root, self._samples = str(root), samples

    def __len__(self) -> int:
        return self._samples

    def read(self, index: int) -> Tuple[memoryview, int]:
        """Return (bytes, label).  Raises DatasetError where the archive is gone or damaged."""
        path = self._path(index)
        try:
            with np.load(path) as arrays:
                return memoryview(arrays["x"]), int(arrays["y"])
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, NotImplementedError) as error:
            raise DatasetError(f"cannot read {path}: {error}; convert again") from None

    def extents(self, index: int) -> Sequence[Extent]:
        """Return the whole file."""
        path = self._path(index)
        return (Extent(path, 0, os.stat(path).st_size),)

    def _path(self, index: int) -> str:
        if not 0 <= index < self._samples:
            raise IndexError(index)
        return f"{self._root}/{name_of(index)}"


class NpzFormat:
    """Writes and opens a tree of archives."""

    def write(self, samples: Iterable[StoredSample], root: Path) -> None:
        """Write one archive a sample."""
        for sample in samples:
            path = root / name_of(sample.id)
            path.parent.mkdir(parents=True, exist_ok=True)
            arrays: Dict[str, Any] = {
                "x": np.frombuffer(sample.data, np.uint8),
                "y": np.int64(sample.label),
            }
            np.savez(path, **arrays)

    def open(self, dataset: Dataset, root: Path) -> NpzReader:
        """Return a reader; files are opened one by one."""
        return NpzReader(root, dataset.samples)

    def files(self, dataset: Dataset, root: Path) -> List[Path]:
        """Return every archive, in id order."""
        return sorted(root.glob("*/*.npz"))


BACKEND = FormatBackend(NpzFormat, "one NumPy archive (.npz) a sample, uncompressed")
