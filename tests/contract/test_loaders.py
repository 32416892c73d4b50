"""What every loader promises on every stored form it takes: a new file is tested by being there."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any, Dict, FrozenSet, Iterable, List, Tuple

import numpy as np
import pytest

from iobench.backends.caffe import hdf5
from iobench.core import order as order_of_epoch
from iobench.core import registry, transforms
from iobench.core.cases import Case, Dataset
from iobench.core.errors import SpecError
from iobench.core.members import LoaderBackend
from iobench.core.order import SEQUENCES, SHARINGS, shard_buffer
from iobench.core.protocols import LoadRequest, StoredSample
from iobench.spec.case_rules import check_case
from tests.build import photos
from tests.capabilities import need_modules

SAMPLES = 26  # not a whole number of batches
BATCH = 4
WORLD_SIZES = (1, 2, 3, 4, 7)
SOONEST = "threads"  # it takes every form and starts no process
FORMS = ("jpeg", "lmdb", "hdf5", "tar")

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def forms() -> List[str]:
    out = []
    for name in registry.names("formats"):
        backend = registry.load("formats", name)
        if not backend.fileless:
            out += backend.stored_forms(name)
    return out


def pairs() -> List[Tuple[str, str]]:
    out = []
    for loader in registry.names("loaders"):
        allowed = registry.load("loaders", loader).formats
        out += [(loader, form) for form in forms() if allowed is None or form in allowed]
    return out


def each(found: Iterable[Tuple[str, ...]], *more: str) -> pytest.MarkDecorator:
    """Return the parameters of a test of these pairs; those of forms that hold pixels are slow.

    They differ in what a stored sample is, which the formats' own tests cover.  One loader takes
    all forms here, the next all that hold pictures, the others those of FORMS; the rest is breadth.
    ``more``: names of what follows loader and form.
    """

    def marks(loader: str, form: str) -> List[pytest.MarkDecorator]:
        pixels = "-" in form
        if loader == SOONEST:
            return [pytest.mark.slow] * pixels
        now = form in FORMS or (loader == "torch" and not pixels)
        return [] if now else [pytest.mark.breadth]

    return pytest.mark.parametrize(
        ("loader", "form", *more), [pytest.param(*pair, marks=marks(*pair[:2])) for pair in found]
    )


def transformed() -> List[Tuple[str, str, str]]:
    """Return (loader, form, transform): all three over the first form of files and of pixels."""
    out = []
    for loader in registry.names("loaders"):
        mine = [form for name, form in pairs() if name == loader]
        firsts = {"-" in form: form for form in reversed(mine)}.values()
        able = registry.load("loaders", loader).transforms
        usual = "rrc224" if able is None or "rrc224" in able else min(able)
        for form in mine:
            every = ("rrc224", "crop224", "cifar32") if form in firsts else (usual,)
            out += [(loader, form, transform) for transform in every]
    return out


every_pair = each(pairs())
#: Loaders that keep the time of each sample.
TIMED = ("torch", "threads", "spdl", "grain")
#: Without the loader that reads nothing.
every_reading_pair = each(pair for pair in pairs() if pair[0] != "null")


class Source:
    """One stored form of the same few samples, and requests to read it."""

    def __init__(self, folder: Path, form: str, stored: List[StoredSample]) -> None:
        name = form.partition("-")[0]
        need_modules(registry.load("formats", name).requires)
        self.form, self.stored = form, stored
        self.format = registry.load("formats", name).make()
        self.dataset: Dataset = photos.dataset_of(stored, folder)
        written = stored
        if form.endswith("-float"):
            written = [dataclasses.replace(s, data=hdf5.planes(s.data)) for s in stored]
        self.root = photos.store(written, folder, self.format, form)

    def request(self, **changes: Any) -> LoadRequest:
        changes.setdefault("batch", BATCH)
        changes.setdefault("order", "stored")
        changes.setdefault("workers", 1)  # each may be a process that imports its libraries anew
        return photos.request_of(self.stored, self.dataset, self.root, self.format, **changes)


def cut(stored: List[StoredSample], height: int, width: int) -> List[StoredSample]:
    pixels = [transforms.decode(s.data)[:height, :width].copy() for s in stored]
    return [dataclasses.replace(s, data=d) for s, d in zip(stored, pixels)]


@functools.cache
def pictures() -> List[StoredSample]:
    return photos.samples(SAMPLES)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Source]:
    return {}


@pytest.fixture
def source(
    form: str, sources: Dict[str, Source], tmp_path_factory: pytest.TempPathFactory
) -> Source:
    if form not in sources:
        stored = pictures()
        if form.endswith("-raw"):  # HDF5 holds pixels of one size
            stored = cut(stored, 228, 230)
        elif form.endswith("-float"):
            stored = cut(stored, 224, 224)
        sources[form] = Source(tmp_path_factory.mktemp(form), form, stored)
    return sources[form]


def run(loader: str, request: LoadRequest, **options: Any) -> List[Any]:
    need_modules(registry.load("loaders", loader).requires)
    made = registry.load("loaders", loader).make(fitting(loader, request), **options)
    assert made.queue_batches >= 0
    batches = [
        b if b.data is None else b._replace(data=np.asarray(b.data).copy()) for b in made.batches()
    ]
    made.close()
    made.close()
    return batches


def fitting(loader: str, request: LoadRequest) -> LoadRequest:
    """Return the request with a rung, a transform and an order that the loader has."""
    if request.order.partition(":")[0] not in orders(loader, request.root.name):
        request = dataclasses.replace(request, order=orders_of(loader, request.root.name)[0])
    able = registry.load("loaders", loader).transforms
    if able is not None and request.transform not in able:
        request = dataclasses.replace(request, transform=min(able))
    if request.stage == "read" and not request.digest:
        request = dataclasses.replace(request, stage=first_stage(loader))
    return request


def first_stage(loader: str) -> str:
    """Return the lowest rung that the loader runs alone."""
    return "read" if "read" in registry.load("loaders", loader).stages else "load"


def ids_of(batches: List[Any]) -> List[int]:
    return [int(i) for b in batches for i in b.ids]


def orders(loader: str, form: str) -> FrozenSet[str]:
    allowed: FrozenSet[str] = registry.load("loaders", loader).orders.get(form, SEQUENCES)
    return allowed


def orders_of(loader: str, form: str) -> List[str]:
    every = ["stored", "shuffled", "window:6", "shards:6"]
    return [order for order in every if order.partition(":")[0] in orders(loader, form)]


@pytest.mark.parametrize("loader", registry.names("loaders"))
def test_it_is_a_loader_backend(loader: str) -> None:
    backend = registry.load("loaders", loader)
    assert isinstance(backend, LoaderBackend)
    assert backend.summary
    assert "load" in backend.stages
    assert set(backend.no_stage) == {"read", "decode", "load"} - backend.stages
    assert all(backend.no_stage.values())


@every_pair
def test_batches_are_whole_in_order_and_labelled(loader: str, form: str, source: Source) -> None:
    labels = {s.id: s.label for s in source.stored}
    for order in orders_of(loader, form):
        request = source.request(order=order, stage="read", workers=2)
        batches = run(loader, request)
        assert len(batches) == SAMPLES // BATCH
        if shard_buffer(order):  # a sequence of its own
            assert sorted(ids_of(batches)) == request.ids.tolist()
        else:
            assert ids_of(batches) == request.ids.tolist()
        for batch in batches:
            assert len(batch.ids) == BATCH
            assert batch.ids.dtype == np.int64
            assert np.asarray(batch.labels).dtype == np.int64
            assert np.asarray(batch.labels).tolist() == [labels[i] for i in batch.ids.tolist()]
            assert (batch.data is None) == (first_stage(loader) == "read")
            assert batch.marks is not None or loader not in TIMED
            if batch.marks is not None:  # as a sample began, and after each part of it
                marks = np.asarray(batch.marks).reshape(BATCH, -1)
                assert marks.shape[1] == 2
                assert (np.diff(marks, axis=1) > 0).all()
            assert batch.digests is None


@every_pair
def test_every_stage_counts_the_bytes(loader: str, form: str, source: Source) -> None:
    for stage in sorted(registry.load("loaders", loader).stages):
        request = source.request(stage=stage)
        batches = run(loader, request)
        expected = [int(request.sizes[b.ids].sum()) for b in batches]
        assert [b.nbytes for b in batches] == ([0] * len(batches) if loader == "null" else expected)


@each(transformed(), "transform")
def test_load_gives_dense_float_batches(
    loader: str, form: str, source: Source, transform: str
) -> None:
    options = {"data": "resident"} if loader == "null" else {}
    able = registry.load("loaders", loader).transforms
    if able is not None and transform not in able:
        with pytest.raises(SpecError, match="crop224"):
            registry.load("loaders", loader).make(source.request(transform=transform))
        return
    batches = run(loader, source.request(transform=transform), **options)
    shape = (BATCH, *transforms.transform(transform).shape)
    assert len(batches) == SAMPLES // BATCH
    for batch in batches:
        assert batch.data.shape == shape
        assert batch.data.dtype == np.float32
        assert np.isfinite(batch.data).all()
        if loader != "null":
            assert batch.data.std() > 0.2


@every_reading_pair
def test_pixels_repeat_with_the_seed_and_change_with_the_epoch(
    loader: str, form: str, source: Source
) -> None:
    first, again, later = (
        np.concatenate([b.data for b in run(loader, source.request(epoch=epoch, seed=3))])
        for epoch in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    as_stored = loader == "native" and form.endswith("-float")  # that layer draws nothing
    assert np.array_equal(first, later) == as_stored


@every_reading_pair
def test_the_digests_are_those_of_the_stored_bytes(loader: str, form: str, source: Source) -> None:
    batches = run(loader, source.request(stage="read", digest=True))
    expected = photos.digests_of(source.stored)
    assert [d for b in batches for d in b.digests] == [expected[i] for i in ids_of(batches)]


@every_reading_pair
@pytest.mark.parametrize("sharing", SHARINGS)
def test_ranks_read_every_sample_once_but_the_stated_remainder(
    loader: str, form: str, sharing: str, source: Source
) -> None:
    """The digests of the bytes prove it, not the ids that a loader was asked for."""
    ways = registry.load("loaders", loader).sharings.get(form)
    able = ways is None or sharing in ways
    order = "shuffled" if "shuffled" in orders_of(loader, form) else "stored"
    known = photos.digests_of(source.stored)
    worlds = WORLD_SIZES if sharing == "stride" else (3,)
    if registry.load("loaders", loader).native.isdisjoint({form}) and loader == "dali":
        worlds = (3,) if sharing == "stride" else ()  # each opening starts a process of 2 s
    for world_size in worlds if able else (1,):
        whole = SAMPLES - order_of_epoch.remainder(SAMPLES, 2, world_size)
        shares = [
            run(loader, source.request(
                order=order, stage="read", digest=True, batch=2, sharing=sharing,
                rank=rank, world_size=world_size, workers=0 if loader == "torch" else 1,
            ))
            for rank in range(world_size)
        ]  # fmt: skip
        assert len({len(share) for share in shares}) == 1, "ranks in step have equally many batches"
        batches = [batch for share in shares for batch in share]
        assert sorted(i for batch in batches for i in batch.ids) == list(range(whole))
        seen = sorted(digest for batch in batches for digest in batch.digests)
        assert seen == sorted(known[:whole])
    assert len(set(known)) == SAMPLES


@pytest.mark.parametrize(
    ("loader", "form"), [p for p in pairs() if registry.load("loaders", p[0]).sharings.get(p[1])
                         is not None]
)  # fmt: skip
@pytest.mark.parametrize("sharing", SHARINGS)
def test_a_sharing_that_is_not_declared_is_refused(loader: str, form: str, sharing: str) -> None:
    ways = registry.load("loaders", loader).sharings[form]
    format_, _, content = form.partition("-")
    case = Case(
        loader=loader, format=format_, content=content or "jpeg", batch=2,
        order=orders_of(loader, form)[0],
        transform="crop224", world_size=2, launcher="mpirun", sharing=sharing,
        image=registry.load("loaders", loader).stack or "torch",
    )  # fmt: skip
    if sharing in ways:
        check_case(case, "case")
        return
    with pytest.raises(SpecError, match="cannot share the data among ranks"):
        check_case(case, "case")


@every_pair
def test_it_can_be_left_early_or_never_started(loader: str, form: str, source: Source) -> None:
    need_modules(registry.load("loaders", loader).requires)
    make = registry.load("loaders", loader).make
    wanted = fitting(loader, source.request(stage="read"))
    made = make(wanted)
    assert len(next(made.batches()).ids) == BATCH
    made.close()
    made.close()
    make(wanted).close()


@pytest.mark.parametrize("form", [f for f in ("lmdb", "tar") if f in forms()])
def test_dali_follows_any_order_through_the_formats_reader(form: str, source: Source) -> None:
    request = source.request(order="shuffled", stage="read", rank=1, world_size=2)
    batches = run("dali", request, reader="external")
    assert ids_of(batches) == request.ids.tolist()
    labels = [int(x) for b in batches for x in b.labels]
    assert labels == [source.stored[i].label for i in ids_of(batches)]
