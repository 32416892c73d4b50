"""One Parquet file of JPEG bytes, label and id, as HF datasets, Ray Data and others read.

Parquet's readers fetch a whole row group: a sample costs its group, unless the one before was of
the same.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any, Dict, Iterable, List, Sequence, Tuple

from iobench.backends.formats._reader import LazyReader
from iobench.core.cases import Dataset, Extent
from iobench.core.errors import DatasetError
from iobench.core.members import FormatBackend
from iobench.core.options import Range
from iobench.core.protocols import StoredSample

DATA = "data.parquet"


class ParquetReader(LazyReader):
    """Reads row groups by pyarrow, on the calling thread, and keeps the last one."""

    def __init__(self, path: Path, samples: int) -> None:
        super().__init__(samples)
        self._path = str(path)

    def read(self, index: int) -> Tuple[memoryview, int]:
        """Return (JPEG, label): a view of the row group's memory.

        Raises OSError or ValueError where the file is gone or damaged.
        """
        file, labels, rows, last = opened = self._handles()
        group, row = divmod(index, rows)
        if group not in last:
            column = file.read_row_group(group, columns=["jpeg"], use_threads=False)["jpeg"]
            opened[-1] = last = {group: column.combine_chunks()}
        return memoryview(last[group][row].as_buffer()).cast("B"), int(labels[index])

    def extents(self, index: int) -> Sequence[Extent]:
        """Return the bytes of the sample's row group, its JPEG column."""
        file, _, rows, _ = self._handles()
        column = file.metadata.row_group(index // rows).column(0)
        return (Extent(self._path, column.data_page_offset, column.total_compressed_size),)

    def _open(self) -> List[Any]:
        """Return [file, labels, rows of a group, {number of the last group: its samples}]."""
        import pyarrow.parquet

        file = pyarrow.parquet.ParquetFile(self._path)
        labels = file.read(columns=["label"], use_threads=False)["label"].to_numpy()
        return [file, labels, file.metadata.row_group(0).num_rows, {}]

    def _end(self, opened: Any) -> None:
        opened[0].close()


class ParquetFormat:
    """Writes and opens the file.  ``row_group``: samples a row group (HF datasets' for images)."""

    def __init__(self, *, row_group: Annotated[int, Range(1, 1_000_000)] = 100) -> None:
        self._rows = row_group

    @property
    def layout(self) -> Dict[str, Any]:
        """Options that shape what is written."""
        return {"row_group": self._rows}

    def write(self, samples: Iterable[StoredSample], root: Path) -> None:
        """Write the file row group by row group: plain values, for JPEGs do not compress."""
        import pyarrow
        import pyarrow.parquet

        columns = [("jpeg", pyarrow.binary()), ("label", pyarrow.int64()), ("id", pyarrow.int64())]
        schema = pyarrow.schema([pyarrow.field(*column, nullable=False) for column in columns])
        plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        stream = iter(samples)
        with pyarrow.parquet.ParquetWriter(root / DATA, schema, **plain) as file:
            while group := list(itertools.islice(stream, self._rows)):
                rows = zip(*((bytes(sample.data), sample.label, sample.id) for sample in group))
                file.write_table(pyarrow.table(list(map(list, rows)), schema=schema))

    def open(self, dataset: Dataset, root: Path) -> ParquetReader:
        """Return a reader; the file is opened by the first read."""
        if not (root / DATA).exists():
            raise DatasetError(f"no {root / DATA}: convert again")
        return ParquetReader(root / DATA, dataset.samples)

    def files(self, dataset: Dataset, root: Path) -> List[Path]:
        """Return the file."""
        return [root / DATA]


BACKEND = FormatBackend(
    ParquetFormat,
    "Parquet: row groups of JPEG bytes, label and id",
    requires=("pyarrow",),
    libraries={"pyarrow": "pyarrow"},
    shared=frozenset({"jpeg"}),
)
