"""HDF5 files in the layout that Caffe's HDF5Data layer reads: ``data`` and ``label``, float32.

``data`` is (n, 3, h, w), blue first, with ImageNet's mean taken off: the layer transforms nothing,
so what is stored is what is trained on.  The layer loads a file at a time, whole, so the samples
are split into files of a few each.
"""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any, Iterable, List, Optional, Sequence, Tuple, Union

import numpy as np

from iobench.backends.formats._reader import LazyReader
from iobench.core.cases import Extent
from iobench.core.errors import DatasetError
from iobench.core.protocols import StoredSample
from iobench.core.transforms import IMAGENET_MEAN

#: Samples a file: 77 MB at 224x224.
SAMPLES = 128
_NAMES = "data-*.h5"
#: Channel means in the stored order.
MEAN = tuple(reversed(IMAGENET_MEAN))
_MEAN = np.array(MEAN, np.float32).reshape(3, 1, 1)


def planes(pixels: np.ndarray) -> np.ndarray:
    """Return (h, w, 3) uint8 RGB as it is stored: (3, h, w) float32."""
    return pixels[:, :, ::-1].transpose(2, 0, 1).astype(np.float32) - _MEAN


def pixels(stored: np.ndarray) -> np.ndarray:
    """Return what :func:`planes` was given: exact, as a rounding error is far below one level."""
    whole = np.rint(stored + _MEAN).astype(np.uint8)
    return np.ascontiguousarray(whole[::-1].transpose(1, 2, 0))


def files(root: Path) -> List[Path]:
    """Return the files of a folder, in id order."""
    return sorted(root.glob(_NAMES))


def write(samples: Iterable[StoredSample], root: Path, each: int) -> None:
    """Write files of ``each`` samples.  Raises DatasetError for samples of several sizes."""
    import h5py

    stream = iter(samples)
    for number in itertools.count():
        part = list(itertools.islice(stream, each))
        if not part:
            return
        shape = part[0].data.shape
        odd = [s.key for s in part if s.data.shape != shape]
        if odd:
            raise DatasetError(f"sample {odd[0]} is not {shape}, and all must be of one size")
        with h5py.File(root / f"data-{number:05d}.h5", "w") as file:
            data = file.create_dataset("data", (len(part), *shape), np.float32)
            for row, sample in enumerate(part):
                data[row] = sample.data
            file.create_dataset("label", data=np.array([s.label for s in part], np.float32))


def write_last(path: Path, shape: Tuple[int, ...]) -> None:
    """Write a file of one sample of ``shape`` without its pixels (zeros), to stand last in a list.

    After a file's last row the layer loads the next at once, after the last file the first: an
    epoch would end with the load of a file that nobody asked for.  The row itself is read by the
    pass that `caffe train` makes after its last step.
    """
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("data", (1, *shape), np.float32)
        file.create_dataset("label", data=np.zeros(1, np.float32))


def opened(path: Union[str, Path], cache_bytes: int, driver: Optional[str] = None) -> Any:
    """Return a file opened for reading.  Raises DatasetError where that fails."""
    import h5py

    try:
        return h5py.File(path, "r", rdcc_nbytes=cache_bytes, locking=False, driver=driver)
    except OSError as error:
        raise DatasetError(f"cannot open {path}: {error}; convert again") from None


class FloatReader(LazyReader):
    """Reads samples one by one, as pixels again; one file is open at a time."""

    def __init__(self, root: Path, samples: int, cache_bytes: int) -> None:
        super().__init__(samples)
        self._paths = files(root)
        if not self._paths:
            raise DatasetError(f"{root} holds no {_NAMES}: convert again")
        self._cache_bytes = cache_bytes
        self._each = 0
        self._number = 0

    def read(self, index: int) -> Tuple[np.ndarray, int]:
        """Return (pixels, label): (h, w, 3) uint8 RGB."""
        row = self._go_to(index)
        _, data, labels = self._handles()
        return pixels(data[row]), int(labels[row])

    def extents(self, index: int) -> Sequence[Extent]:
        """Return the sample's row: the dataset lies in one piece."""
        row = self._go_to(index)
        data = self._handles()[1]
        length = data.dtype.itemsize * int(np.prod(data.shape[1:]))
        start = data.id.get_offset()
        return (Extent(str(self._paths[self._number]), start + row * length, length),)

    def _go_to(self, index: int) -> int:
        """Open the file that holds the sample; return its row there."""
        if not 0 <= index < self._samples:
            raise DatasetError(f"no sample {index}: there are {self._samples}")
        if not self._each:
            self._each = len(self._handles()[2])  # of the first file
        number, row = divmod(index, self._each)
        if number != self._number:
            self.close()
            self._number = number
        return row

    def _open(self) -> Tuple[Any, Any, Any]:
        path = self._paths[min(self._number, len(self._paths) - 1)]
        file = opened(path, self._cache_bytes)
        return file, file["data"], file["label"][:]

    def _end(self, opened: Any) -> None:
        with contextlib.suppress(ValueError):
            opened[0].close()

    _leave = _end  # else the library would go on with it
