"""Real Caffe: what its layers read, what it trains, how it ends, and whole trials on bare metal."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

from iobench.backends.caffe import nets
from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.dataset import sample_digest
from iobench.core.records import FAILED, VALID
from iobench.data import convert, index
from iobench.data.index import Row
from iobench.run.trial import TrialSettings, run_trial
from iobench.worker import remote_loader
from tests.build import photos
from tests.build.attempts import attempted
from tests.build.rows import rows
from tests.capabilities import need

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[3]
CLASSES = 4
FORMS = ["jpeg", "lmdb", "lmdb-raw", "leveldb", "leveldb-raw", "hdf5-float"]
every_form = pytest.mark.parametrize("form", FORMS)


def inside(function: str, folder: Path, **arguments: Any) -> Any:
    """Run a function of tests.system.caffe.inside in Caffe's Python."""
    need("caffe")
    stack = registry.installed("caffe")
    env = {**stack.env, "PYTHONPATH": os.pathsep.join([str(ROOT), *stack.python_path])}
    before = {name: os.environ.get(name) for name in env}
    back = {remote_loader.PYTHON: sys.executable, remote_loader.RESTORE: json.dumps(before)}
    done = subprocess.run(
        [stack.python, "-m", "tests.system.caffe.inside", function, json.dumps(arguments)],
        env={**os.environ, **env, **back},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def picture(label: int, seed: int, height: int, width: int) -> np.ndarray:
    """Return stripes whose direction is the class, in random colours, phase and noise."""
    random = np.random.default_rng([seed, label])
    y, x = np.mgrid[:height, :width]
    along = (x, y, x + y, x - y)[label]
    wave = np.sin(along / 6 + random.uniform(0, 6.3))
    colour = random.uniform(40, 90, 3)
    noise = random.normal(0, 8, (height, width, 3))
    pixels: np.ndarray = np.clip(128 + wave[..., None] * colour + noise, 0, 255).astype(np.uint8)
    return pixels


def make(root: Path, samples: int, first: int) -> Dataset:
    """Write a dataset whose classes take turns, of pictures a bit larger than the crop."""
    import simplejpeg

    rows = []
    for i in range(samples):
        label = i % CLASSES
        size = 226 + i % 3, 232 - i % 5
        data = simplejpeg.encode_jpeg(picture(label, first + i, *size), quality=85)
        path = root / "jpeg" / f"c{label}" / f"{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        rows.append(
            Row(f"c{label}/{i:05d}", label, len(data), sample_digest(data), f"c{label}/{i:05d}.jpg")
        )
    return index.declare(
        root, rows, name="stripes", seed=0, source="tests", jpeg_root=str(root / "jpeg")
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    need("caffe")
    return make(tmp_path_factory.mktemp("stripes"), 96, 0)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make(tmp_path_factory.mktemp("held-out"), 48, 1000)


def with_form(data: Dataset, form: str, folder: Path) -> Dataset:
    """Convert the dataset, where this machine can."""
    name, _, content = form.partition("-")
    for capability in {"lmdb": ["lmdb"], "leveldb": ["leveldb"], "hdf5": ["hdf5"]}.get(name, []):
        need(capability)
    lacking = inside("modules", folder, names=["plyvel"] if name == "leveldb" else ["blake3"])
    if lacking:
        pytest.skip(f"Caffe's Python has no {lacking[0]}")
    if name != "jpeg" and not datasets.has_form(data, form):
        options = {"shard": 40} if content == "float" else {}
        made = convert.convert(data, name, content=content or "jpeg", options=options)
        if options:  # several files, in place of the usual layout's one
            made.rename(made.with_name(form))
    return data


# -- what the layers read --------------------------------------------------------------------


@every_form
def test_the_layers_rows_are_the_datasets_samples(form: str, data: Dataset, tmp_path: Path) -> None:
    with_form(data, form, tmp_path)
    order = "shuffled" if form == "jpeg" else "stored"
    found = inside("digests", tmp_path, root=data.root, form=form, order=order)
    assert sorted(found["ids"]) == list(range(96))
    assert (found["ids"] == list(range(96))) == (order == "stored")
    assert found["labels"] == [i % CLASSES for i in found["ids"]]
    expected = found["expected"]
    if "-" in form:  # what those hold are pixels
        side = 224 if form.endswith("float") else 256
        files = datasets.load_index(data).files
        read = [Path(data.jpeg_root, files[i]).read_bytes() for i in found["ids"]]
        expected = [sample_digest(convert.pixels(stored, side)) for stored in read]
    assert found["digests"] == expected


@every_form
@pytest.mark.parametrize("rank", [0, 1])
def test_two_ranks_read_their_own_rows(form: str, rank: int, data: Dataset, tmp_path: Path) -> None:
    with_form(data, form, tmp_path)
    found = inside("digests", tmp_path, root=data.root, form=form, rank=rank, world_size=2)
    assert found["ids"] == list(range(rank, 96, 2))
    whole = inside("digests", tmp_path, root=data.root, form=form)
    assert found["digests"] == whole["digests"][rank::2]


def test_the_twin_sees_another_sample(data: Dataset, tmp_path: Path) -> None:
    """Two samples of one class have changed places in the LMDB: labels alone could not tell."""
    need("lmdb")
    copy = make(tmp_path / "set", 24, 0)
    stored = [
        photos.StoredSample(
            i, f"k{i}", Path(copy.jpeg_root, f"c{j % 4}/{j:05d}.jpg").read_bytes(), j % 4
        )
        for i, j in enumerate([4, 1, 2, 3, 0, *range(5, 24)])
    ]
    photos.store(stored, tmp_path, photos_format("lmdb"), "lmdb")
    shutil.move(str(tmp_path / "lmdb"), str(tmp_path / "set" / "lmdb"))
    found = inside("digests", tmp_path, root=copy.root, form="lmdb")
    wrong = [i for i, d, e in zip(found["ids"], found["digests"], found["expected"]) if d != e]
    assert wrong == [0, 4]


def photos_format(name: str) -> Any:
    return registry.load("formats", name).make()


@pytest.mark.parametrize("form", ["jpeg", "lmdb", "lmdb-raw"])
def test_rows_are_crops_of_their_images(form: str, data: Dataset, tmp_path: Path) -> None:
    with_form(data, form, tmp_path)
    places = inside("crops", tmp_path, root=data.root, form=form, options={})["places"]
    assert None not in places
    assert len({tuple(p[:2]) for p in places}) > 10
    mirrored = sum(p[2] for p in places)
    assert 20 < mirrored < 76  # of 96, one half: 3 sigma are 15
    plain = inside("crops", tmp_path, root=data.root, form=form, options={"mirror": False})
    assert not any(p[2] for p in plain["places"])


def test_a_wrong_label_in_a_database_is_told(tmp_path: Path) -> None:
    need("lmdb")
    copy = make(tmp_path / "set", 24, 0)
    files = datasets.load_index(copy).files
    stored = [
        photos.StoredSample(i, f"k{i}", Path(copy.jpeg_root, name).read_bytes(), (i + (i == 5)) % 4)
        for i, name in enumerate(files)
    ]
    photos.store(stored, tmp_path, photos_format("lmdb"), "lmdb")
    shutil.move(str(tmp_path / "lmdb"), str(tmp_path / "set" / "lmdb"))
    said = inside("refused", tmp_path, root=copy.root, form="lmdb", options={})
    assert said.startswith("DatasetError: Caffe's Data layer gave other samples")
    assert "1 of 24, the first at place 5" in said


def test_a_held_batch_outlives_its_loader(data: Dataset, tmp_path: Path) -> None:
    assert inside("held", tmp_path, root=data.root)["same"]


# -- training --------------------------------------------------------------------------------


PIPELINES = [("native", "lmdb"), ("native", "hdf5-float"), ("dali", "jpeg")]
OTHERS = [("native", form) for form in ("jpeg", "lmdb-raw", "leveldb")]
OTHERS += [("threads", "lmdb"), ("torch", "lmdb")]


@pytest.mark.parametrize(("name", "form"), rows(PIPELINES, OTHERS))
def test_every_pipeline_learns(
    name: str, form: str, data: Dataset, held_out: Dataset, tmp_path: Path
) -> None:
    with_form(data, form, tmp_path)
    if name == "dali" and inside("modules", tmp_path, names=["nvidia.dali"]):
        pytest.skip("Caffe's Python has no DALI")
    if name == "torch":
        need("torch")
    often = {"count": 1, "times": 12} if name == "torch" else {"count": 12}  # its start takes long
    found = inside(
        "epochs", tmp_path, root=data.root, name=name, form=form, options={}, batch=8, **often,
        held_out=held_out.root, net="small", classes=CLASSES, learning_rate=0.003,
    )  # fmt: skip
    learned(found, held_out)
    assert found["classes"] == CLASSES


@pytest.mark.parametrize("form", rows(["lmdb"], ["jpeg", "leveldb"]))  # HDF5: once through
def test_the_program_learns(form: str, data: Dataset, held_out: Dataset, tmp_path: Path) -> None:
    with_form(data, form, tmp_path)
    found = inside(
        "snapshot", tmp_path, root=data.root, form=form, count=12, batch=8,
        held_out=held_out.root, net="small", classes=CLASSES, learning_rate=0.003,
    )  # fmt: skip
    learned(found, held_out)


def learned(found: Dict[str, float], held_out: Dataset) -> None:
    """Hold the share of right answers to be above chance by three standard deviations."""
    chance = 1 / CLASSES
    sigma = math.sqrt(chance * (1 - chance) / held_out.samples)
    assert found["after"] > chance + 3 * sigma, found
    assert found["after"] > found["before"]


def test_the_same_order_gives_the_same_losses(
    data: Dataset, held_out: Dataset, tmp_path: Path
) -> None:
    arguments = {
        "root": data.root, "name": "native", "form": "jpeg", "options": {}, "count": 1, "batch": 8,
        "held_out": held_out.root, "net": "small", "classes": CLASSES, "losses": True,
    }  # fmt: skip
    first = inside("epochs", tmp_path, **arguments, seed=1)
    again = inside("epochs", tmp_path, **arguments, seed=1)
    other = inside("epochs", tmp_path, **arguments, seed=2)
    assert first["losses_digest"] == again["losses_digest"] != other["losses_digest"]
    assert first["losses"] == again["losses"]
    assert len(first["losses"].split()) == 12


def test_caffe_counts_the_same_parameters(tmp_path: Path) -> None:
    counted = inside("parameters", tmp_path, names=sorted(nets.NETS))
    assert counted == {name: net.parameters for name, net in nets.NETS.items()}


def test_batches_are_handed_over_without_being_kept(data: Dataset, tmp_path: Path) -> None:
    found = inside("memory", tmp_path, root=data.root)
    assert found["grown_kib"] < 8 * found["batch_kib"]  # it had 60 of them


def test_the_program_s_steps(data: Dataset, tmp_path: Path) -> None:
    with_form(data, "lmdb", tmp_path)
    found = inside(
        "program", tmp_path, root=data.root, form="lmdb", batch=8, net="small", classes=CLASSES,
        learning_rate=0.003, losses=True,
    )  # fmt: skip
    assert len(found["done_s"]) == 12
    assert found["done_s"] == sorted(found["done_s"])
    assert set(found["wait_s"]) == {0.0}
    assert found["ids"] == list(range(96))
    assert len(found["facts"]["losses"].split()) == 12
    assert found["facts"]["parameters"] == 16 * 3 * 64 + 16 + (14 * 14 * 16 + 1) * CLASSES
    assert "wait" in found["facts"]["remark"]
    assert len(found["replayed_s"]) >= 3
    assert 0.2 < found["replayed_s"][-1] < 60


OWN = """
name: "own"
layer { name: "d" type: "Data" top: "x" top: "y" data_param { source: "gone" batch_size: 4 } }
layer { name: "fc" type: "InnerProduct" bottom: "x" top: "fc"
        inner_product_param { num_output: 4 weight_filler { type: "gaussian" std: 0.0001 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "y" top: "loss" }
"""


def test_a_users_solver_trains(data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "own.prototxt").write_text(OWN)
    path = tmp_path / "solver.prototxt"
    path.write_text(
        'net: "own.prototxt" type: "Adam" base_lr: 1e-6 lr_policy: "fixed" momentum: 0.9'
    )
    found = inside("solver", tmp_path, root=data.root, path=str(path))
    for name in ("caffe", "caffe_train"):
        assert found[name]["net"] == "own"
        assert math.isfinite(found[name]["last_loss"])
    assert found["caffe"]["parameters"] == (3 * 224 * 224 + 1) * 4


# -- whole trials ----------------------------------------------------------------------------


def case(trainer: str = "caffe", form: str = "lmdb", **changes: Any) -> Case:
    options = {} if trainer == "emulated" else {"net": "small", "classes": CLASSES}
    plain: Any = {
        "loader": "native", "format": form, "trainer": trainer, "image": "caffe", "order": "stored",
        "transform": "crop224", "batch": 8, "workers": 1, "trainer_options": options,
    }  # fmt: skip
    return Case(label="c", **{**plain, **changes})


@pytest.mark.parametrize(
    ("trainer", "stage", "cache"),
    [
        ("caffe", "train", "warm"),
        ("caffe", "compute", "-"),
        ("caffe", "digest", "-"),
        ("caffe_train", "train", "warm"),
        ("caffe_train", "compute", "-"),
        ("caffe", "load", "cold"),
    ],
)
def test_trials_on_bare_metal(
    trainer: str, stage: str, cache: str, data: Dataset, tmp_path: Path
) -> None:
    with_form(data, "lmdb", tmp_path)
    trial = Trial("1", case(trainer), stage, cache)
    record = attempted(trial, data, TrialSettings(limit_s=60.0, compute_s=0.5))
    allowed = {VALID, "EXPLORATORY"} if cache == "cold" else {VALID}
    assert record.status in allowed, record.reasons
    rank = record.ranks[0]
    if stage in ("train", "load"):
        assert sum(rank.steps.samples) == 96
        assert rank.bytes_needed == data.bytes
        assert rank.notes["queue_batches"] == 2
    if stage in ("train", "compute"):
        facts = rank.notes["trainer"]
        assert facts["kind"] == trainer
        learned = facts["first_loss"] != facts["last_loss"]
        assert learned == (stage == "train")  # a replayed batch is not learned by heart
    if stage == "digest":
        assert rank.notes["wrong_digests"] == 0


def broken(data: Dataset, folder: Path, form: str, how: str) -> Dataset:
    """Return a copy of the dataset with one thing broken in a stored form."""
    root = folder / "broken"
    shutil.copytree(data.root, root)
    found = datasets.locate(root)
    if how == "a listed file is gone":
        (root / "jpeg/c1/00041.jpg").unlink()
    elif how == "images are smaller than the crop":
        import simplejpeg

        small = simplejpeg.encode_jpeg(picture(1, 1, 100, 300))
        (root / "jpeg/c1/00041.jpg").write_bytes(small)
    elif how == "no LMDB":
        (root / form / "data.mdb").write_bytes(b"garbage" * 4000)
    elif how == "cut short":
        os.truncate(root / form / "data.mdb", (root / form / "data.mdb").stat().st_size // 2)
    elif how == "other names in it":
        import h5py

        for path in (root / form).glob("data-*.h5"):
            with h5py.File(path, "r+") as file:
                file.move("data", "images")
    return found


@pytest.mark.parametrize(
    ("form", "how", "stage", "words"),
    [
        ("jpeg", "a listed file is gone", "load", ["00041.jpg is missing", "data verify"]),
        ("jpeg", "a listed file is gone", "digest", ["Caffe stopped", "00041.jpg"]),
        ("jpeg", "images are smaller than the crop", "load", ["Caffe stopped", "than the crop"]),
        ("lmdb", "no LMDB", "load", ["Caffe stopped", "LMDB is missing or damaged"]),
        ("lmdb", "cut short", "load", ["SIGBUS", "cut short"]),
        ("hdf5-float", "other names in it", "load", ["Caffe stopped", "hdf5-float"]),
    ],
)
def test_a_broken_trial_says_why_in_one_line_and_leaves_nothing(
    form: str,
    how: str,
    stage: str,
    words: List[str],
    data: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_form(data, form, tmp_path)
    found = broken(data, tmp_path, form, how)
    name, _, content = form.partition("-")
    broken_case = case("emulated", name, content=content or "jpeg")
    trial = Trial("1", broken_case, stage, "-" if stage == "digest" else "warm")
    with tempfile.TemporaryDirectory() as temporary:  # a short path: sockets may have to fit in
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        monkeypatch.setenv("TMPDIR", temporary)
        record = run_trial(trial, found, 1, TrialSettings(limit_s=60.0))
        assert os.listdir(temporary) == []
    assert record.status == FAILED
    (reason,) = record.reasons
    assert "\n" not in reason
    assert all(word in reason for word in words), reason


def test_an_aborted_worker_leaves_nothing_in_a_folder_with_a_long_name(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sockets of multiprocessing do not fit below it by its name."""
    with_form(data, "hdf5-float", tmp_path)
    found = broken(data, tmp_path, "hdf5-float", "other names in it")
    temporary = tmp_path / ("long" * 20)
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    trial = Trial("1", case("emulated", "hdf5", content="float"), "load", "warm")
    record = run_trial(trial, found, 1, TrialSettings(limit_s=60.0))
    assert "Caffe stopped" in record.reasons[0], record.reasons
    assert os.listdir(temporary) == []


def test_a_solver_that_does_not_parse_says_so(data: Dataset, tmp_path: Path) -> None:
    with_form(data, "lmdb", tmp_path)
    net, solver = tmp_path / "net.prototxt", tmp_path / "solver.prototxt"
    net.write_text(OWN.replace("inner_product_param {", "inner_product_param { ratio: 3"))
    solver.write_text(f'net: "{net}" base_lr: 0.1 lr_policy: "fixed"')
    for trainer in ("caffe", "caffe_train"):
        wanted = case(trainer, trainer_options={"solver": str(solver)})
        record = run_trial(
            Trial("1", wanted, "train", "warm"), data, 1, TrialSettings(limit_s=60.0)
        )
        assert record.status == FAILED
        assert "Caffe stopped" in record.reasons[0]
        assert 'no field named "ratio"' in record.reasons[0]
        assert "mend the solver or net" in record.reasons[0]
