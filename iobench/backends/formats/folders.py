"""One JPEG file a sample in numbered folders of so many each: what a directory's size costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Dict, Iterable, List

from iobench.backends.formats._files import FileReader
from iobench.core.cases import Dataset
from iobench.core.dataset import load_index
from iobench.core.members import FormatBackend
from iobench.core.options import Range
from iobench.core.protocols import StoredSample


class FoldersFormat:
    """Writes and opens numbered folders.  ``files``: how many files lie in one."""

    def __init__(self, *, files: Annotated[int, Range(1, 1 << 30)] = 1000) -> None:
        self._each = files

    @property
    def layout(self) -> Dict[str, Any]:
        """Options that shape what is written."""
        return {"files": self._each}

    def write(self, samples: Iterable[StoredSample], root: Path) -> None:
        """Write ``<root>/NNNNNNNN/NNNNNNNN.jpg`` for every sample."""
        for sample in samples:
            path = root / self._name(sample.id)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(sample.data)

    def open(self, dataset: Dataset, root: Path) -> FileReader:
        """Return a reader; the index is loaded here, the files one by one."""
        labels = load_index(dataset).labels
        return FileReader(root, [self._name(i) for i in range(len(labels))], labels)

    def files(self, dataset: Dataset, root: Path) -> List[Path]:
        """Return every file, in id order."""
        return sorted(root.glob("*/*.jpg"))

    def _name(self, sample: int) -> str:
        return f"{sample // self._each:08d}/{sample:08d}.jpg"


BACKEND = FormatBackend(
    FoldersFormat, "one JPEG file a sample, in numbered folders of equally many", per_file=True
)
