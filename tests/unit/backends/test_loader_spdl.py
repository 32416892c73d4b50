"""SPDL: what waits in its queues, and what its own defaults would lose."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.core import registry
from iobench.core.protocols import LoadRequest
from tests.build import photos
from tests.capabilities import need_modules

SAMPLES = 400


@pytest.fixture(scope="module")
def request_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    need_modules(registry.load("loaders", "spdl").requires)
    stored = photos.samples(SAMPLES, small=True)
    folder = tmp_path_factory.mktemp("spdl")
    form = registry.load("formats", "tar").make()
    dataset = photos.dataset_of(stored, folder)
    root: Path = photos.store(stored, folder, form, "tar")

    def make(**changes: Any) -> LoadRequest:
        return photos.request_of(stored, dataset, root, form, **{"stage": "read", **changes})

    return make


@pytest.mark.parametrize(
    ("workers", "prefetch", "batch"), [(1, 1, 1), (4, 1, 1), (2, 4, 8), (4, 2, 8)]
)
def test_the_stated_queue_is_what_waits_in_it(
    request_of: Any, workers: int, prefetch: int, batch: int
) -> None:
    """SPDL holds two items behind every stage, beside the sink that the user sets."""
    request = request_of(workers=workers, prefetch=prefetch, batch=batch)
    loader = registry.load("loaders", "spdl").make(request)
    made = []
    for maker in loader._makers:
        maker._reader.read = counted(maker._reader.read, made)
    batches = loader.batches()
    next(batches)
    while True:  # until nothing more is made: the queues are full
        before = len(made)
        time.sleep(0.5)
        if len(made) == before:
            break
    waiting = len(made) - batch
    batches.close()
    loader.close()
    assert loader.queue_batches - 1 < waiting / batch <= loader.queue_batches


def counted(read: Any, made: list[int]) -> Any:
    def count(index: int) -> Any:
        made.append(index)
        return read(index)

    return count


def test_without_order_the_samples_are_the_same(request_of: Any) -> None:
    request = request_of(workers=4, batch=8, order="shuffled")
    loader = registry.load("loaders", "spdl").make(request, in_order=False)
    found = list(loader.batches())
    loader.close()
    ids = np.concatenate([batch.ids for batch in found])
    assert sorted(ids.tolist()) == sorted(request.ids.tolist())
    labels = np.concatenate([batch.labels for batch in found])
    assert np.array_equal(labels, request.labels[ids])
