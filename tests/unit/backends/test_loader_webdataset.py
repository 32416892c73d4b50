"""WebDataset: every sample once from shards that no number of workers divides, and what is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.core import registry
from iobench.core.errors import DatasetError, SpecError
from iobench.core.order import epochs
from iobench.core.protocols import LoadRequest
from tests.build import photos
from tests.capabilities import need_modules

SAMPLES, BATCH, SHARDS, EACH = 103, 8, 13, 8
SHARD_BYTES = 25_000
ORDER = "shards:16"
#: The library leaves it to the garbage collector to close shards.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def request_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    need_modules(registry.load("loaders", "webdataset").requires)
    stored = photos.samples(SAMPLES, small=True)
    folder = tmp_path_factory.mktemp("webdataset")
    form = registry.load("formats", "tar").make(shard_bytes=SHARD_BYTES)
    dataset = photos.dataset_of(stored, folder)
    root: Path = photos.store(stored, folder, form, "tar")
    assert len(form.files(dataset, root)) == SHARDS

    def make(**changes: Any) -> LoadRequest:
        asked = {"stage": "read", "order": ORDER, "batch": BATCH, "transform": "cifar32"}
        return photos.request_of(stored, dataset, root, form, **{**asked, **changes})

    return make


def run(request: LoadRequest) -> list[Any]:
    loader = registry.load("loaders", "webdataset").make(request)
    try:
        return list(loader.batches())
    finally:
        loader.close()


def ids_of(batches: list[Any]) -> list[int]:
    return [int(i) for batch in batches for i in batch.ids]


@pytest.mark.parametrize("workers", [0, 1, 3, 15])  # more than there are shards, too
def test_every_sample_comes_once_in_whole_batches(request_of: Any, workers: int) -> None:
    request = request_of(workers=workers, stage="load")
    batches = run(request)
    assert sorted(ids_of(batches)) == request.ids.tolist() == list(range(96))
    for batch in batches:
        assert len(batch.ids) == len(batch.labels) == len(batch.data) == BATCH
        assert np.array_equal(batch.labels, request.labels[batch.ids])
        assert batch.nbytes == int(request.sizes[batch.ids].sum())
    pixels = {i: row for b in batches for i, row in zip(b.ids.tolist(), np.asarray(b.data))}
    for batch in run(request_of(workers=0, stage="load")):  # whoever put them together
        for i, row in zip(batch.ids.tolist(), np.asarray(batch.data)):
            assert np.array_equal(row, pixels[i])


def test_shards_and_samples_are_mixed_anew_in_each_epoch(request_of: Any) -> None:
    first, again, later = (ids_of(run(request_of(epoch=epoch))) for epoch in (0, 0, 1))
    assert first == again != later
    for ids in (first, later):
        assert ids != sorted(ids)
        shards = [i // EACH for i in ids]
        assert len(set(shards[: 2 * BATCH])) > 1
        # no further than a buffer and a shard in each worker: what such an order is worth
        assert np.mean(np.diff(shards) == 0) > 1 / SHARDS


def test_ranks_read_their_own_shards(request_of: Any) -> None:
    asked = [request_of(rank=r, world_size=3, sharing="disjoint") for r in range(3)]
    shares = [ids_of(run(request)) for request in asked]
    assert [len(share) for share in shares] == [32, 32, 32]
    assert sorted(i for share in shares for i in share) == list(range(96))
    loaders = [registry.load("loaders", "webdataset").make(request) for request in asked]
    assert [loader.describe()["shards"] for loader in loaders] == [4, 5, 5]  # edges are shared
    for loader in loaders:
        loader.close()


def test_a_loop_of_several_epochs_reads_each_sample_as_often(request_of: Any) -> None:
    request = request_of()
    ids = epochs(3, SAMPLES, ORDER, seed=0, batch=BATCH)
    found = ids_of(run(LoadRequest(**{**vars(request), "ids": ids})))
    assert sorted(found) == sorted(ids.tolist())
    assert len(found) == 3 * 96


def test_a_sample_that_is_no_jpeg_is_named(tmp_path: Path, request_of: Any) -> None:
    stored = photos.spoilt(photos.samples(20, small=True), 7, b"no jpeg")
    form = registry.load("formats", "tar").make()
    dataset, root = photos.dataset_of(stored, tmp_path), photos.store(stored, tmp_path, form, "tar")
    asked = {"stage": "load", "order": ORDER, "transform": "cifar32", "workers": 2}
    with pytest.raises(DatasetError, match="sample 7 of"):
        run(photos.request_of(stored, dataset, root, form, **asked))


@pytest.mark.parametrize("cut", [0.5, 0.0])  # inside a member; nothing is left
def test_samples_that_a_shard_lacks_are_an_error(tmp_path: Path, cut: float) -> None:
    need_modules(registry.load("loaders", "webdataset").requires)
    stored = photos.samples(40, small=True)
    form = registry.load("formats", "tar").make(shard_bytes=SHARD_BYTES)
    dataset, root = photos.dataset_of(stored, tmp_path), photos.store(stored, tmp_path, form, "tar")
    shard = form.files(dataset, root)[1]
    data = shard.read_bytes()
    shard.write_bytes(data[: int(len(data) * cut)])
    request = photos.request_of(stored, dataset, root, form, order=ORDER, stage="read", workers=2)
    with pytest.raises(DatasetError, match="convert again"):
        run(request)


def test_an_order_that_is_one_sequence_is_refused(request_of: Any) -> None:
    with pytest.raises(SpecError, match="cannot follow order 'shuffled'; use shards:N"):
        run(request_of(order="shuffled"))


def test_a_folder_that_it_would_take_for_a_url_is_refused(tmp_path: Path) -> None:
    need_modules(registry.load("loaders", "webdataset").requires)
    stored = photos.samples(8, small=True)
    form = registry.load("formats", "tar").make()
    folder = tmp_path / "what?"
    folder.mkdir()
    dataset, root = photos.dataset_of(stored, folder), photos.store(stored, folder, form, "tar")
    with pytest.raises(DatasetError, match="rename that folder"):
        run(photos.request_of(stored, dataset, root, form, order=ORDER, stage="read"))
