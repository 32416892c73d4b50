"""What DALI of this Python makes of a dataset: run under two Pythons, and their words compared."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any, Dict

import numpy as np

from iobench.core import dataset, registry, transforms
from iobench.core.cases import Dataset
from iobench.core.protocols import LoadRequest

BATCH = 4


def request(found: Dataset, form: str, **changes: Any) -> LoadRequest:
    index = dataset.load_index(found)
    return LoadRequest(
        dataset=found,
        format_name=form,
        format=registry.load("formats", form).make(),
        root=dataset.form_root(found, form),
        ids=np.arange(found.samples),
        labels=index.labels,
        sizes=index.sizes,
        batch=BATCH,
        order="stored",
        **changes,
    )


def run(found: Dataset, form: str, options: Dict[str, Any], **changes: Any) -> str:
    """Return a digest of ids, labels, bytes and stored bytes; the pixels are judged here."""
    loader = registry.load("loaders", "dali").make(request(found, form, **changes), **options)
    seen = hashlib.sha256()
    kept = []
    for batch in loader.batches():
        seen.update(repr((batch.ids.tolist(), batch.labels.tolist(), batch.nbytes)).encode())
        seen.update(repr(batch.digests).encode())
        if batch.data is not None:
            assert batch.data.shape == (BATCH, 3, 224, 224), batch.data.shape
            assert batch.data.dtype == np.float32
            assert batch.data.flags.c_contiguous
            kept.append((batch, batch.data.copy()))
    loader.close()
    for batch, copy in kept:
        assert np.array_equal(batch.data, copy), "a batch changed while later ones were made"
    if changes.get("transform") == "crop224":
        windows(found, form, kept[0][0])
    return seen.hexdigest()


def windows(found: Dataset, form: str, batch: Any) -> None:
    """Hold the pixels of a batch against our own decoder's: exact windows, mirrored or not."""
    made = registry.load("formats", form).make()
    reader = made.open(found, dataset.form_root(found, form))
    mean = np.array(transforms.IMAGENET_MEAN)[:, None, None]
    for sample, row in zip(batch.ids.tolist(), batch.data):
        image = transforms.decode(reader.read(sample)[0])
        window = np.rint(row + mean).astype(np.uint8).transpose(1, 2, 0)
        assert any(holds(image, window[:, ::flip]) for flip in (1, -1)), (form, sample)
    reader.close()


def holds(image: np.ndarray, window: np.ndarray) -> bool:
    height, width = image.shape[0] - 223, image.shape[1] - 223
    corner = (image[:height, :width] == window[0, 0]).all(axis=2)
    return any(
        np.array_equal(image[top : top + 224, left : left + 224], window)
        for top, left in np.argwhere(corner)
    )


def main() -> None:
    import nvidia.dali

    found = dataset.locate(Path(sys.argv[1]))
    say = sys.stdout.write
    say(f"{nvidia.dali.__version__}\n")
    for form in ("jpeg", "lmdb", "tar", "hdf5"):
        for options in ({}, {"reader": "external"})[: 2 if form == "lmdb" else 1]:
            said = [run(found, form, options, stage="read", digest=True)]
            said += [run(found, form, options, transform=t) for t in ("crop224", "rrc224")]
            say(f"{form} {options} {' '.join(said)}\n")


if __name__ == "__main__":  # an external source's processes import this again
    main()
