"""Writes the index of a dataset and the marker that ends its making."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterable, NamedTuple, Sequence

from iobench.core.cases import Dataset, to_json
from iobench.core.dataset import INDEX, MARKER, PARTIAL, samples_digest
from iobench.host.files import settle, write_json


class Row(NamedTuple):
    """One sample of the index."""

    key: str
    label: int
    size: int
    digest: str
    file: str


def write_index(root: Path, rows: Iterable[Row]) -> None:
    """Write ``samples.tsv``; the fifth column only where the file is not ``<key>.jpg``."""
    with open(root / INDEX, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for key, label, size, digest, name in rows:
            last = "" if name == key + ".jpg" else "\t" + name
            file.write(f"{key}\t{label}\t{size}\t{digest}{last}\n")


def finish(dataset: Dataset) -> Dataset:
    """Settle the files on the device, then write ``dataset.json``: now the dataset is there."""
    root = Path(dataset.root)
    settle(root)
    write_json(root / MARKER, to_json(dataset))
    (root / PARTIAL).unlink(missing_ok=True)
    return dataset


def declare(root: Path, rows: Sequence[Row], **facts: Any) -> Dataset:
    """Write the index of samples in id order, finish the dataset; ``facts``: its other fields."""
    write_index(root, rows)
    labels = [row.label for row in rows]
    return finish(
        Dataset(
            root=str(root),
            samples=len(rows),
            bytes=sum(row.size for row in rows),
            classes=len(set(labels)),
            digest=samples_digest(range(len(rows)), labels, [row.digest for row in rows]),
            **facts,
        )
    )
