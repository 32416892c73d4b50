"""Datasets of which only the index is there: for code that reads no sample."""

from __future__ import annotations

from pathlib import Path

from iobench.core.cases import Dataset
from iobench.data.index import Row, finish, write_index


def indexed(
    root: Path, samples: int, *, size: int = 0, classes: int = 1, digest: str = ""
) -> Dataset:
    """Return ``samples`` of ``size`` bytes each, whose classes take turns."""
    root.mkdir(exist_ok=True)
    rows = [Row(f"n0/{i}", i % classes, size, digest, f"n0/{i}.jpg") for i in range(samples)]
    write_index(root, rows)
    jpeg = str(root / "jpeg")
    return finish(
        Dataset(str(root), "t", samples, samples * size, classes, 1, "", "test", jpeg_root=jpeg)
    )
