"""The loops by hand that fidelity is judged against: free of iobench, and doing the same work."""

from __future__ import annotations

import ast
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import handwritten
from iobench.core import registry, transforms
from tests.build import photos
from tests.capabilities import need, need_modules


def test_nothing_of_iobench_is_imported() -> None:
    tree = ast.parse(Path(handwritten.__file__).read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert "numpy" in imported
    assert not imported & {"iobench", "benchmarks", ""}


FORMS = ("jpeg", "lmdb", "hdf5", "tar", "parquet", "tfrecord", "arrayrecord")


@pytest.mark.parametrize(
    ("loader", "form", "options"),
    [
        *(("torch", form, {}) for form in FORMS),
        ("torch", "jpeg", {"threads": 3}),
        ("torch", "jpeg", {"in_order": False}),
        ("dali", "jpeg", {}),
        ("spdl", "jpeg", {}),
        ("grain", "jpeg", {}),
        ("grain", "arrayrecord", {}),
        ("webdataset", "tar", {"buffer": 5}),
    ],
)
def test_it_reads_the_same_samples(
    loader: str, form: str, options: dict[str, Any], tmp_path: Path
) -> None:
    need(loader)
    need_modules(registry.load("formats", form).requires)
    stored = photos.samples(12)
    root = photos.store(stored, tmp_path, registry.load("formats", form).make(), form)
    task = {
        "loader": loader,
        "format": form,
        "root": str(root),
        "batch": 4,
        "workers": 2,
        "prefetch": 2,
        **options,
    }
    ids = np.random.default_rng(1).permutation(12)
    batches = handwritten.LOOPS[loader](task, [(s.key, s.label) for s in stored], ids)
    labels = []
    for _ in range(3):
        images, found = next(batches)
        labels += np.asarray(found).ravel().tolist()
        assert tuple(images.shape) == (4, 3, 224, 224)
        assert 0.3 < float(np.asarray(images).std()) < 3
    wanted = [stored[i].label for i in ids]
    if loader == "webdataset" or "in_order" in options:
        assert sorted(labels) == sorted(wanted)
    else:
        assert labels == wanted


@pytest.mark.parametrize("form", FORMS)
def test_its_bytes_are_the_stored_ones(form: str, tmp_path: Path) -> None:
    need_modules(registry.load("formats", form).requires)
    stored = photos.samples(6)
    root = photos.store(stored, tmp_path, registry.load("formats", form).make(), form)
    kind = {
        "jpeg": handwritten.Jpegs,
        "lmdb": handwritten.Lmdb,
        "hdf5": handwritten.Hdf5,
        "tar": handwritten.Tar,
        "parquet": handwritten.Parquet,
        "tfrecord": handwritten.Tfrecord,
        "arrayrecord": handwritten.ArrayRecord,
    }[form]
    source = kind({"root": str(root)}, [(s.key, s.label) for s in stored])
    source.open()
    for sample in stored:
        data, label = source.read(sample.id)
        assert bytes(data) == sample.data
        assert label == sample.label


def test_its_crops_follow_the_same_distribution() -> None:
    random.seed(1)
    ours = [
        transforms.random_resized_crop((375, 500), transforms.SampleRandom(i)) for i in range(3000)
    ]
    theirs = [handwritten.crop(375, 500) for _ in range(3000)]
    for column in range(4):
        a, b = (np.array([box[column] for box in boxes]) for boxes in (ours, theirs))
        # two samples of 3,000: means within five standard errors
        error = np.hypot(a.std(), b.std()) / np.sqrt(3000)
        assert abs(a.mean() - b.mean()) < 5 * error
