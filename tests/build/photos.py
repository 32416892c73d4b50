"""Photo-like samples, and a request for a loader to read them: shared by the data path's tests."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Iterable, List, Sequence, Tuple

import numpy as np

from iobench.core.cases import Dataset, Extent
from iobench.core.dataset import sample_digest
from iobench.core.order import sample_order
from iobench.core.protocols import LoadRequest, StoredSample
from iobench.data.index import Row, write_index


def picture(seed: int, height: int, width: int) -> np.ndarray:
    """Return smooth colour fields with a little grain: (height, width, 3) uint8."""
    import cv2

    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (8, 10, 3), dtype=np.uint8)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    grain = random.normal(0, 6, (height, width, 3))
    return np.clip(smooth + grain, 0, 255).astype(np.uint8)


def jpeg(seed: int, height: int, width: int) -> bytes:
    import simplejpeg

    return simplejpeg.encode_jpeg(picture(seed, height, width), quality=90)


def samples(count: int, *, small: bool = False) -> List[StoredSample]:
    """Return ``count`` JPEG samples of 3 classes, ids ascending with the class."""
    random = np.random.default_rng(7)
    out = []
    for i in range(count):
        h, w = (
            (32, 32) if small else (int(random.integers(230, 300)), int(random.integers(230, 340)))
        )
        label = i * 3 // count
        out.append(StoredSample(i, f"c{label}/{i:06d}", jpeg(i, h, w), label))
    return out


def pixels(stored: Sequence[StoredSample]) -> List[StoredSample]:
    """Return the same samples as raw pixels."""
    from iobench.core import transforms

    return [dataclasses.replace(s, data=transforms.decode(s.data)) for s in stored]


class Files:
    """The smallest format: one file a sample; stands in where a test needs no real one."""

    def write(self, samples: Iterable[StoredSample], root: Path) -> None:
        for s in samples:
            path = root / f"{s.key}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(s.data)

    def open(self, dataset: Dataset, root: Path) -> FilesReader:
        return FilesReader(self.files(dataset, root))

    def files(self, dataset: Dataset, root: Path) -> List[Path]:
        return sorted(root.rglob("*.jpg"))


class FilesReader:
    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> Tuple[Any, int]:
        return self.paths[index].read_bytes(), int(self.paths[index].parent.name[1:])

    def extents(self, index: int) -> Sequence[Extent]:
        path = self.paths[index]
        return [Extent(str(path), 0, path.stat().st_size)]

    def close(self) -> None:
        pass


def dataset_of(stored: Sequence[StoredSample], root: Path) -> Dataset:
    return Dataset(
        root=str(root),
        name="photos",
        samples=len(stored),
        bytes=sum(len(s.data) for s in stored),
        classes=3,
        seed=7,
        digest="",
        source="tests",
        jpeg_root=str(root / "jpeg"),
    )


def store(stored: Sequence[StoredSample], folder: Path, format_: Any, form: str) -> Path:
    """Write one stored form, and the dataset's index beside it; return the form's folder."""
    rows = [Row(s.key, s.label, memoryview(s.data).nbytes, "", f"{s.key}.jpg") for s in stored]
    write_index(folder, rows)
    root = folder / form
    root.mkdir()
    format_.write(stored, root)
    return root


#: Samples, the dataset that they are, and the folder of the stored form that holds them.
Stored = Tuple[List[StoredSample], Dataset, Path]


def stored(
    folder: Path, samples: List[StoredSample], format_: Any = None, form: str = "jpeg"
) -> Stored:
    """Store samples in a form (default: one file each) of a dataset in ``folder``."""
    root = store(samples, folder, format_ or Files(), form)
    return samples, dataset_of(samples, folder), root


def spoilt(samples: Sequence[StoredSample], sample: int, data: bytes) -> List[StoredSample]:
    """Return the samples with other bytes in place of one's."""
    return [dataclasses.replace(s, data=data) if s.id == sample else s for s in samples]


def request_of(
    stored: Sequence[StoredSample],
    dataset: Dataset,
    root: Path,
    format_: Any,
    *,
    order: str = "stored",
    batch: int = 4,
    rank: int = 0,
    world_size: int = 1,
    limit: int = 0,
    sharing: str = "stride",
    **changes: Any,
) -> LoadRequest:
    ids = sample_order(
        len(stored),
        order,
        seed=changes.get("seed", 0),
        epoch=changes.get("epoch", 0),
        rank=rank,
        world_size=world_size,
        batch=batch,
        limit=limit,
        sharing=sharing,
    )
    return LoadRequest(
        dataset=dataset,
        format_name=root.name.partition("-")[0],
        format=format_,
        root=root,
        ids=ids,
        labels=np.array([s.label for s in stored], np.int64),
        sizes=np.array([memoryview(s.data).nbytes for s in stored], np.int64),
        batch=batch,
        order=order,
        rank=rank,
        world_size=world_size,
        sharing=sharing,
        **changes,
    )


def digests_of(stored: Sequence[StoredSample]) -> List[str]:
    return [sample_digest(s.data) for s in stored]
