"""What the native loader asks of Caffe, without Caffe: layers, lists, links, and refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest

from iobench.backends.caffe import hdf5, library, log
from iobench.backends.caffe.prototxt import Message, parse
from iobench.backends.formats.jpeg import JpegFormat
from iobench.backends.loaders.native import BACKEND, NativeLoader
from iobench.backends.trainers.caffe_train import _measured
from iobench.core.errors import BackendUnavailable, DatasetError, SpecError
from iobench.core.protocols import LoadRequest
from iobench.spec import load
from tests.build import photos
from tests.capabilities import need

SAMPLES = 12


def request(folder: Path, form: str = "jpeg", **changes: Any) -> LoadRequest:
    """A request for samples whose files are empty: Caffe would read them, the loader does not."""
    stored = photos_of(SAMPLES)
    dataset = photos.dataset_of(stored, folder)
    root = folder / form
    if not root.exists():
        photos.store(stored, folder, JpegFormat(), form)
    changes = {"transform": "crop224", "prefetch": 3, **changes}
    return photos.request_of(stored, dataset, root, JpegFormat(), **changes)


def photos_of(count: int) -> List[Any]:
    from iobench.core.protocols import StoredSample

    return [StoredSample(i, f"c{i % 3}/{i:03d}", b"x", i % 3) for i in range(count)]


def layer_of(loader: NativeLoader) -> Message:
    found: Message = parse(loader._text, "net").get("layer")
    return found


def test_a_list_holds_the_files_in_the_requests_order(tmp_path: Path) -> None:
    wanted = request(tmp_path, order="shuffled", rank=1, world_size=2, batch=3)
    loader = NativeLoader(wanted)
    parameter = layer_of(loader).get("image_data_param")
    lines = Path(parameter.get("source")).read_text().splitlines()
    ids = wanted.ids.tolist()
    assert ids != sorted(ids)
    assert lines == [f"{wanted.root}/c{i % 3}/{i:03d}.jpg {row}" for row, i in enumerate(ids)]
    labelled = loader.layer(3, rows=False).get("image_data_param").get("source")
    assert [int(line.split()[-1]) for line in Path(labelled).read_text().splitlines()] == [
        i % 3 for i in ids
    ]
    loader.close()
    assert not Path(labelled).exists()
    loader.close()


def test_the_transform_is_crop224_in_caffes_order(tmp_path: Path) -> None:
    loader = NativeLoader(request(tmp_path))
    found = layer_of(loader)
    assert found.get("transform_param").get("crop_size") == "224"
    assert found.get("transform_param").all("mean_value") == ["103.53", "116.28", "123.675"]
    assert found.get("data_param").get("prefetch") == "3"
    assert loader.queue_batches == 3
    loader.close()
    loader = NativeLoader(request(tmp_path), mirror=False, mean="none", scale=0.5)
    assert [name for name, _ in layer_of(loader).get("transform_param").fields] == [
        "crop_size",
        "scale",
    ]
    loader.close()


def test_the_twin_takes_whole_images_one_by_one(tmp_path: Path) -> None:
    loader = NativeLoader(request(tmp_path, digest=True, stage="read"), rand_skip=2)
    found = layer_of(loader)
    assert not found.all("transform_param")
    assert found.get("image_data_param").get("batch_size") == "1"
    assert not found.get("image_data_param").all("rand_skip")
    loader.close()


def test_caffes_own_options_reach_the_list(tmp_path: Path) -> None:
    options: Any = {"rand_skip": 5, "new_height": 256, "new_width": 300}
    loader = NativeLoader(request(tmp_path), **options)
    found = layer_of(loader).get("image_data_param")
    assert [found.get(name) for name in options] == ["5", "256", "300"]
    assert loader.describe()["rand_skip"] == 5
    loader.close()
    few = request(tmp_path, limit=4)  # as the compute rung, which asks for a batch
    loader = NativeLoader(few, rand_skip=5)
    assert layer_of(loader).get("image_data_param").get("rand_skip") == "4"
    loader.close()
    loader = NativeLoader(request(tmp_path), shuffle=True)
    assert layer_of(loader).get("image_data_param").get("shuffle") == "true"
    loader.close()


@pytest.mark.parametrize("form", ["lmdb", "leveldb"])
def test_caffe_opens_a_database_in_a_folder_of_links(tmp_path: Path, form: str) -> None:
    root = tmp_path / form
    root.mkdir()
    names = ["data.mdb"] if form == "lmdb" else ["000005.ldb", "CURRENT", "MANIFEST-000002"]
    for name in names:
        (root / name).write_text(name)
    loader = NativeLoader(request(tmp_path, form))
    source = Path(layer_of(loader).get("data_param").get("source"))
    assert sorted(os.listdir(source)) == sorted(names)
    assert (source / names[0]).resolve() == (root / names[0]).resolve()
    (source / "LOCK").touch()
    assert sorted(os.listdir(root)) == sorted(names)
    loader.close()
    assert not source.exists()


def test_a_folder_without_a_leveldb_is_told(tmp_path: Path) -> None:
    (tmp_path / "leveldb").mkdir()
    with pytest.raises(DatasetError, match="no LevelDB"):
        NativeLoader(request(tmp_path, "leveldb"))


def test_hdf5_files_end_in_one_that_costs_nothing(tmp_path: Path) -> None:
    need("hdf5")
    root = tmp_path / "hdf5-float"
    root.mkdir()
    for number in range(2):
        (root / f"data-{number:05d}.h5").touch()
    loader = NativeLoader(request(tmp_path, "hdf5-float"))
    listed = Path(layer_of(loader).get("hdf5_data_param").get("source")).read_text().split()
    assert listed[:2] == [str(path) for path in hdf5.files(root)]
    assert os.path.getsize(listed[2]) < 10_000
    import h5py

    with h5py.File(listed[2]) as last:  # `caffe train` looks at it after its last step
        assert last["data"].shape == (1, 3, 224, 224)
    assert loader.queue_batches == 0
    assert loader.in_pieces
    loader.close()
    loader = NativeLoader(request(tmp_path, "hdf5-float"), shuffle=True)
    listed = Path(layer_of(loader).get("hdf5_data_param").get("source")).read_text().split()
    assert len(listed) == 2  # a shuffled list has no last file
    assert loader.describe()["ids"] == "unknown"
    loader.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_keep_their_stride_of_a_database(tmp_path: Path, rank: int) -> None:
    (tmp_path / "lmdb").mkdir()
    loader = NativeLoader(request(tmp_path, "lmdb", rank=rank, world_size=2, batch=3))
    assert (loader._rank, loader._world) == (rank, 2)
    loader.close()


@pytest.mark.parametrize(
    ("form", "changes", "options", "words"),
    [
        ("lmdb", {"order": "shuffled"}, {}, "stored order"),
        ("lmdb", {"limit": 8}, {}, "all samples"),
        ("lmdb", {}, {"shuffle": True}, "Data layer has no shuffle"),
        ("lmdb", {}, {"rand_skip": 3}, "Data layer has no rand_skip"),
        ("lmdb", {}, {"new_width": 3}, "Data layer has no new_width"),
        ("hdf5-float", {}, {"rand_skip": 3}, "HDF5Data layer has no rand_skip"),
        ("hdf5-float", {}, {}, "no files in Caffe's layout"),
        ("jpeg", {}, {"new_width": 3}, "go together"),
        ("jpeg", {}, {"rand_skip": 13}, "rand_skip 13"),
        ("jpeg", {}, {"rand_skip": 3, "shuffle": True}, "some samples twice"),
        ("jpeg", {}, {"mean": "mine"}, "imagenet, none"),
        ("jpeg", {"transform": "rrc224"}, {}, "resize nothing at random"),
        ("jpeg", {"decode_delay_s": 0.1}, {}, "decode_delay_s"),
        ("jpeg", {"stage": "read"}, {}, "no step of it runs alone"),
    ],
)
def test_what_caffe_cannot_do_is_refused(
    tmp_path: Path, form: str, changes: Any, options: Any, words: str
) -> None:
    (tmp_path / form).mkdir() if form != "jpeg" else None
    with pytest.raises((SpecError, DatasetError), match=words):
        NativeLoader(request(tmp_path, form, **changes), **options)


def test_other_samples_than_asked_for_are_told(tmp_path: Path) -> None:
    loader = NativeLoader(request(tmp_path))
    loader._hold_against(np.arange(12), np.arange(12))
    with pytest.raises(DatasetError, match="2 of 12, the first at place 3"):
        loader._hold_against(np.array([0, 1, 2, 4, 3, *range(5, 12)]), np.arange(12))
    loader.close()
    loader = NativeLoader(request(tmp_path), shuffle=True)
    loader._hold_against(np.arange(12)[::-1], np.arange(12))
    with pytest.raises(DatasetError, match="first at place"):
        loader._hold_against(np.array([0, 0, *range(2, 12)]), np.arange(12))
    loader.close()


def test_float_planes_give_the_pixels_back() -> None:
    every = np.arange(256, dtype=np.uint8)
    pixels = np.stack([every, every[::-1], np.roll(every, 7)], axis=-1).reshape(16, 16, 3)
    planes = hdf5.planes(pixels)
    assert planes.dtype == np.float32
    assert planes.shape == (3, 16, 16)
    assert planes[0, 0, 0] == pixels[0, 0, 2] - np.float32(103.53)  # blue first
    assert np.array_equal(hdf5.pixels(planes), pixels)


# -- what a spec may ask ---------------------------------------------------------------------


def document(**case: Any) -> Any:
    plain = {"transform": "crop224", "order": "stored", "batch": 4, "trainer": "caffe"}
    return {"name": "t", "case": {"pipeline": "native:lmdb", **plain, **case}}


def test_a_case_of_the_native_loader_has_its_one_thread() -> None:
    (case,) = load.expand(load.parse(document(workers=4)))
    assert case.workers == BACKEND.threads == 1
    assert case.image == "caffe"
    assert case.stored_form == "lmdb"
    (case,) = load.expand(load.parse(document(pipeline="native:hdf5-float")))
    assert (case.format, case.content) == ("hdf5", "float")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"transform": "rrc224"}, ["native", "rrc224", "resize nothing", "crop224"]),
        ({"order": "shuffled"}, ["native:lmdb", "shuffled", "stored"]),
        ({"pipeline": "native:tar"}, ["cannot read 'tar'", "lmdb"]),
        ({"pipeline": "native:hdf5"}, ["cannot read 'hdf5'", "hdf5-float"]),
        ({"pipeline": "native:hdf5-flaot"}, ["flaot", "float"]),
        ({"trainer": "caffe_train", "pipeline": "torch:lmdb"}, ["caffe_train", "native"]),
        ({"trainer_options": {"net": "vgg"}}, ["vgg", "caffenet"]),
        ({"trainer_options": {"threads": "two"}}, ["threads", "two"]),
        ({"loader_options": {"shufle": True}}, ["shufle", "shuffle"]),
        ({"loader_options": {"mean": "mine"}}, ["mean", "mine"]),
    ],
)
def test_a_spec_is_told_what_caffe_cannot(changes: Any, words: List[str]) -> None:
    with pytest.raises(SpecError) as caught:
        load.parse(document(**changes))
    assert all(word in str(caught.value) for word in words), caught.value


def test_steps_of_the_program_hold_no_wait() -> None:
    found = log.TrainLog([1.5, 2.0, 2.25], [3.0, 2.0, 1.0])
    ids = [np.array([0, 2]), np.array([1, 3]), np.array([0, 1])]
    measured = _measured(found, ids, np.array([10, 20, 30, 40]), 1)
    assert list(measured.steps.request_s) == list(measured.steps.ready_s) == [0.0, 1.5, 2.0]
    assert measured.steps.done_s == [1.5, 2.0, 2.25]
    assert measured.steps.bytes == [40, 60, 30]
    assert measured.steps.samples == [2, 2, 2]


def test_a_caffe_that_knows_no_ranks_runs_alone() -> None:
    """Intel-Caffe's Python has none of the three functions."""

    class Other:
        """A module without them."""

    library.share(Other, 0, 1)
    with pytest.raises(BackendUnavailable, match="set_multiprocess"):
        library.share(Other, 1, 2)
