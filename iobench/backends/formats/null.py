"""No bytes at all: tests the tool itself, and shows what a loader costs when storage is free."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, List, Sequence, Tuple

from iobench.backends.formats._reader import LazyReader
from iobench.core.cases import Dataset, Extent
from iobench.core.members import FormatBackend
from iobench.core.protocols import StoredSample


class NullReader(LazyReader):
    """Hands out empty samples."""

    def read(self, index: int) -> Tuple[bytes, int]:
        """Return nothing, labelled 0."""
        return b"", 0

    def extents(self, index: int) -> Sequence[Extent]:
        """Return no range: nothing is on disk."""
        return ()


class NullFormat:
    """Writes nothing and opens nothing."""

    def write(self, samples: Iterable[StoredSample], root: Path) -> None:
        """Drop every sample."""
        for _ in samples:
            pass

    def open(self, dataset: Dataset, root: Path) -> NullReader:
        """Return a reader of as many empty samples as the dataset has."""
        return NullReader(dataset.samples)

    def files(self, dataset: Dataset, root: Path) -> List[Path]:
        """Return no file."""
        return []


BACKEND = FormatBackend(
    NullFormat, "no bytes: tests iobench itself and a loader's own cost", fileless=True
)
