"""One JPEG file a sample in a folder a class: the ImageFolder layout."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, List

from iobench.backends.formats._files import FileReader
from iobench.core.cases import Dataset
from iobench.core.dataset import load_index
from iobench.core.members import FormatBackend
from iobench.core.protocols import StoredSample


class JpegReader(FileReader):
    """Reads the files that the index names."""

    def __init__(self, dataset: Dataset, root: Path) -> None:
        index = load_index(dataset)
        super().__init__(root, index.files, index.labels)


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
