"""Ranks for real: Open MPI of the stack caffe starts them, on this machine's own cores."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import numpy as np
import pytest

from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.order import sample_order
from iobench.core.protocols import Ranks
from iobench.core.records import FAILED, VALID, Record
from iobench.run.trial import TrialSettings, run_trial
from iobench.worker.rank import ids_digest
from tests.build import containers
from tests.build.datasets import indexed
from tests.capabilities import need

pytestmark = pytest.mark.system

#: Goes wrong on rank 1 in its third step, in the way its option says; others wait for it by MPI.
MORTAL = """
import os, signal, time
from iobench.core.errors import DatasetError
from iobench.core.members import TrainerBackend

class Mortal:
    feeds_itself = False
    device = "cpu"
    def __init__(self, *, batch: int, rank: int = 0, world_size: int = 1, how: str = "",
                 mpi: bool = False, step_s: float = 0.005):
        self.rank, self.how, self.steps, self.step_s = rank, how, 0, step_s
        self.comm = None
        if mpi:
            from mpi4py import MPI
            self.comm = MPI.COMM_WORLD
    def step(self, batch):
        self.steps += 1
        if self.rank == 1 and self.steps == 3:
            if self.how == "raise":
                raise DatasetError("sample 7 is damaged: run `iobench data verify`")
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "abort":
                os.write(2, b"F1121 10:00:00.000001     7 layer.cpp:9] Check failed: 1 == 2\\n")
                os.abort()
            if self.how == "hang":
                time.sleep(600)
        time.sleep(self.step_s)
        if self.comm is not None:
            self.comm.Barrier()
    def sync(self):
        pass
    def describe(self):
        facts = {"kind": "mortal", "rank": self.rank, "steps": self.steps}
        return {**facts, "comm_s": 0.001} if self.comm is not None else facts
    def close(self):
        pass

BACKEND = TrainerBackend(Mortal, "dies when it is told to", ranks=True)
"""


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    """64 samples that nobody reads."""
    return indexed(tmp_path / "data", 64, size=10, classes=3, digest="d")


@pytest.fixture
def mortal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "plugins"
    for axis in registry.AXES:
        (folder / axis).mkdir(parents=True)
    (folder / "trainers/mortal.py").write_text(MORTAL)
    monkeypatch.setenv("IOBENCH_PLUGINS", str(folder))
    yield
    package = registry._package("trainers")
    package.__path__.remove(str(folder / "trainers"))
    sys.modules.pop("iobench.backends.trainers.mortal", None)


Run = Callable[..., Record]


@pytest.fixture
def run(data: Dataset) -> Iterator[Run]:
    """Return what runs a trial on ranks; none of its processes may be left at the end."""
    need("caffe")
    marker = f"MALLOC_TOP_PAD_={20_000_000 + os.getpid()}"
    name, _, value = marker.partition("=")
    os.environ[name] = value

    def trial(stage: str, *, limit_s: float = 60.0, compute_s: float = 0.3, **keys: Any) -> Record:
        case = Case(**{**dataclasses.asdict(case_of(data)), **keys})
        settings = TrialSettings(limit_s=limit_s, compute_s=compute_s)
        return run_trial(Trial("t", case, stage, "-"), data, 1, settings)

    try:
        yield trial
        end = time.monotonic() + 5.0  # one that was refused ends by itself, a moment later
        while (left := containers.marked(marker)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not left
    finally:
        del os.environ[name]


def case_of(data: Dataset) -> Case:
    return Case(
        label="x", format="null", loader="null", trainer="emulated", image="caffe",
        trainer_options={"step_s": 0.005}, launcher="mpirun", world_size=2, batch=4, workers=0,
        order="shuffled", location=data.root, seed=3,
    )  # fmt: skip


@pytest.mark.parametrize("sharing", ["stride", "disjoint"])
def test_each_rank_reads_its_own_rows(run: Run, sharing: str) -> None:
    record = run("train", sharing=sharing)
    assert (record.status, record.reasons) == (VALID, ())
    assert [(r.rank, r.world_size) for r in record.ranks] == [(0, 2), (1, 2)]
    for rank in record.ranks:
        ids = sample_order(
            64, "shuffled", seed=3, rank=rank.rank, world_size=2, batch=4, sharing=sharing
        )
        assert rank.order_digest == ids_digest(ids)
        assert sum(rank.steps.samples) == 32
    assert len({rank.pid for rank in record.ranks}) == 2


def test_an_allocation_of_several_nodes_is_not_looked_at(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("SLURM_JOBID", "7"), ("SLURM_JOB_ID", "7"), ("SLURM_NNODES", "2"),
        ("SLURM_NODELIST", "n[1-2]"), ("SLURM_TASKS_PER_NODE", "1(x2)"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    assert run("train").status == VALID


def test_ranks_begin_together_and_the_skew_is_kept(run: Run) -> None:
    record = run("train")
    began = [rank.began_s for rank in record.ranks]
    assert all(began)
    assert record.notes["skew_s"] == max(began) - min(began)


def test_ranks_in_step_replay_equally_often(run: Run, mortal: None) -> None:
    """Each by its own clock would leave one waiting for the other for ever."""
    record = run("compute", trainer="mortal", trainer_options={"mpi": True})
    assert (record.status, record.reasons) == (VALID, ())
    steps = [len(rank.steps.done_s) for rank in record.ranks]
    assert steps[0] == steps[1] > 4
    assert [r.notes["trainer"]["rank"] for r in record.ranks] == [0, 1]


def test_one_rank_is_the_other_side_of_communication(run: Run) -> None:
    record = run("alone")
    assert (record.status, len(record.ranks)) == (VALID, 1)
    assert record.ranks[0].world_size == 1


@pytest.mark.parametrize("mpi", [False, True])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", r"rank 1 of 2: DatasetError: sample 7 is damaged: run `iobench data verify`"),
        ("kill", r"rank 1 of 2 killed by SIGKILL.*"),
        ("abort", r"rank 1 of 2: Caffe stopped at layer.cpp:9: Check failed: 1 == 2.*"),
    ],
)
def test_a_rank_that_fails_ends_the_others_with_one_error(
    run: Run, mortal: None, how: str, said: str, mpi: bool
) -> None:
    record = run("train", trainer="mortal", trainer_options={"how": how, "mpi": mpi, "step_s": 0.2})
    assert record.status == FAILED
    assert len(record.reasons) == 1
    assert re.fullmatch(said, record.reasons[0]), record.reasons
    assert "limit_s" not in record.reasons[0]


def test_a_rank_that_hangs_is_ended_with_the_others(run: Run, mortal: None) -> None:
    record = run("train", limit_s=6.0, trainer="mortal",
                 trainer_options={"how": "hang", "mpi": True})  # fmt: skip
    assert record.status == FAILED
    assert "limit_s" in record.reasons[0]


def test_a_rank_without_its_trainer_says_so(run: Run, tmp_path: Path) -> None:
    record = run("train", trainer_options={"step_s": -1.0})
    assert record.status == FAILED
    assert len(record.reasons) == 1
    assert "step_s -1.0 is not possible" in record.reasons[0]
    assert record.reasons[0].startswith(("rank ", "every rank"))


@pytest.fixture(scope="module")
def services() -> Iterator[None]:
    with containers.services():
        yield


def images_of(case: Case) -> Dict[str, Any]:
    """Return what runs the case, or skip where it cannot run."""
    if case.runtime == "bare":
        need("caffe")
        return {}
    containers.needs(case)
    return containers.images_of(case)


@pytest.mark.parametrize("runtime", containers.RUNTIMES)
def test_ranks_are_started_and_linked_inside_a_container(
    data: Dataset, mortal: None, services: None, runtime: str
) -> None:
    """Docker's has no network, no capability and nothing but /tmp to write to."""
    case = dataclasses.replace(
        case_of(data), runtime=runtime, trainer="mortal", trainer_options={"mpi": True}
    )
    images = images_of(case)
    record = run_trial(Trial("t", case, "train", "-"), data, 1, TrialSettings(images=images))
    assert (record.status, record.reasons) == (VALID, ())
    assert [(r.rank, r.world_size) for r in record.ranks] == [(0, 2), (1, 2)]
    hurt = dataclasses.replace(case, trainer_options={"mpi": True, "how": "kill"})
    record = run_trial(Trial("t", hurt, "train", "-"), data, 1, TrialSettings(images=images))
    assert record.status == FAILED
    assert record.reasons[0].startswith("rank 1 of 2 killed by SIGKILL"), record.reasons


def test_processes_that_do_not_know_each_other_are_no_ranks(run: Run, tmp_path: Path) -> None:
    """As under the mpirun of another MPI: each believes that it is alone."""
    other = tmp_path / "mpirun"
    other.write_text(
        '#!/bin/sh\nwhile [ "$1" != -np ]; do shift; done\nshift 2\n"$@" &\n"$@"\nwait\nexit 1\n'
    )
    other.chmod(0o755)
    record = run("train", launcher_options={"program": str(other)})
    assert record.status == FAILED
    assert "was asked for 2 ranks, and this one knows of 1" in record.reasons[0]


DRIVER = """
import json, sys
from pathlib import Path
from iobench.core.dataset import locate
from iobench.run.trial import TrialSettings, run_trial
from iobench.core.cases import Case, Trial
from iobench.run.command import ImageUse
case, images, root = json.loads(sys.stdin.read())
images = {name: ImageUse(**use) for name, use in images.items()}
wanted = TrialSettings(images=images)
run_trial(Trial("t", Case(**case), "train", "-"), locate(Path(root)), 1, wanted)
"""


@pytest.mark.parametrize(
    ("runtime", "mpi"),
    [("bare", False), *((name, True) for name in ["bare", *containers.RUNTIMES])],
)
def test_kill_9_of_the_driver_leaves_no_rank(
    data: Dataset, mortal: None, services: None, tmp_path: Path, runtime: str, mpi: bool
) -> None:
    need("root")  # to see every process's environment
    marker = f"MALLOC_TOP_PAD_={30_000_000 + os.getpid()}"
    name, _, value = marker.partition("=")
    options = {"step_s": 5.0, "mpi": mpi}
    case = dataclasses.replace(
        case_of(data), runtime=runtime, trainer="mortal", trainer_options=options
    )
    images = {k: dataclasses.asdict(use) for k, use in images_of(case).items()}
    with open(tmp_path / "said", "wb") as said:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            stdin=subprocess.PIPE, stdout=said, stderr=said, env={**os.environ, name: value},
        )  # fmt: skip
    assert driver.stdin
    driver.stdin.write(json.dumps([dataclasses.asdict(case), images, data.root]).encode())
    driver.stdin.close()

    def at_it() -> bool:
        ranks = [w for w in containers.marked(marker).values() if "iobench.worker" in w]
        return len([w for w in ranks if "python" in w[0]]) >= 2

    seen = wait_for(at_it)
    time.sleep(1.0)  # they wait for `go`, or are in their loop
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert seen, (tmp_path / "said").read_text()
    assert wait_for(lambda: not containers.marked(marker)), containers.marked(marker)


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    for _ in range(int(seconds / 0.1)):
        if condition():
            return True
        time.sleep(0.1)
    return False


# -- synchronous data parallel Caffe ---------------------------------------------------------------

NET = """
layer {{ name: "data" type: "{kind}" top: "data" top: "label" {source} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param {{ num_output: 4 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
{norm}
layer {{ name: "relu" type: "ReLU" bottom: "{top}" top: "{top}" }}
layer {{ name: "ip" type: "InnerProduct" bottom: "{top}" top: "ip"
  inner_product_param {{ num_output: 1 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "label" top: "loss" }}
"""
NORM = """
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "norm" }
layer { name: "scale" type: "Scale" bottom: "norm" top: "scale" scale_param { bias_term: true } }
"""
SOLVER = """
net: "{net}" base_lr: 0.0001 momentum: 0.9 weight_decay: 0.0005 lr_policy: "fixed"
max_iter: 1000 solver_mode: CPU random_seed: {seed}
"""
#: Trains some steps on a data layer of Caffe's own whose labels are row numbers; keeps what it saw.
TRAIN = """
import os, sys
import numpy as np
os.environ["GLOG_minloglevel"] = "2"
from iobench.backends.caffe import gradients, library
prototxt, steps, declared, exchanged, out = sys.argv[1:]
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
import caffe
caffe.set_mode_cpu()
if declared == "yes":
    library.share(caffe, rank, size)
solver = caffe.SGDSolver(prototxt % (1 + rank))
net = solver.net
params = [blob for blobs in net.params.values() for blob in blobs]
exchange = gradients.mean(params, size)
exchange.broadcast()
rows = []
for step in range(int(steps)):
    net.clear_param_diffs()
    net.forward()
    rows.append(net.blobs["label"].data.astype(int).copy())
    net.backward()
    if exchanged == "yes":
        exchange()
    solver.apply_update()
named = [(name, i, b) for name, bs in net.params.items() for i, b in enumerate(bs)]
weights = {f"{name}.{i}": b.data.copy() for name, i, b in named}
facts = dict(exchange.describe())
np.savez(f"{out}.{rank}.npz", rows=np.array(rows), comm_s=facts.get("comm_s", -1.0), **weights)
"""
ROWS, STEPS, EACH = 96, 5, 8
#: Writes the rows as an LMDB of Caffe's and as HDF5 files of uneven length.
WRITE = """
import sys
import numpy as np, lmdb, h5py, caffe
root, rows = sys.argv[1], int(sys.argv[2])
data = np.random.RandomState(5).randint(0, 256, (rows, 3, 8, 8)).astype(np.uint8)
with lmdb.open(f"{root}/rows.lmdb", map_size=1 << 26) as base, base.begin(write=True) as put:
    for i in range(rows):
        put.put(b"%08d" % i, caffe.io.array_to_datum(data[i], i).SerializeToString())
names, at = [], 0
for count in (20, 33, rows - 53):
    names.append(f"{root}/{at:04d}.h5")
    with h5py.File(names[-1], "w") as file:
        file["data"] = data[at:at + count].astype(np.float32)
        file["label"] = np.arange(at, at + count, dtype=np.float32)
    at += count
open(f"{root}/rows.txt", "w").write("".join(n + "\\n" for n in names))
"""


class Caffe:
    """Real training runs of the stack caffe in a folder."""

    def __init__(self, root: Path) -> None:
        stack = registry.installed("caffe")
        self.root, self.python = root, stack.python
        path = [str(Path(datasets.__file__).parents[2]), *stack.python_path]
        threads = {"OPENBLAS_NUM_THREADS": "1", "GLOG_minloglevel": "2"}
        from iobench.backends.launchers.mpirun import QUIET

        self.env = {**os.environ, **QUIET, **stack.env, **threads, "PYTHONPATH": ":".join(path)}
        self._do([self.python, "-c", WRITE, str(root), str(ROWS)])

    def _do(self, argv: List[str]) -> None:
        done = subprocess.run(argv, env=self.env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]

    def train(self, ranks: int, batch: int, kind: str = "Data", *, norm: bool = False,
              declared: str = "yes", exchanged: str = "yes") -> List[Dict[str, Any]]:  # fmt: skip
        """Return what each rank kept: rows (steps, batch), and every parameter."""
        sources = {
            "Data": f'data_param {{ source: "{self.root}/rows.lmdb" backend: LMDB '
            f"batch_size: {batch} }} transform_param {{ scale: 0.004 }}",
            "HDF5Data": f'hdf5_data_param {{ source: "{self.root}/rows.txt" batch_size: {batch} }}',
        }
        top = "scale" if norm else "conv"
        name = f"{kind}-{ranks}-{norm}-{declared}-{exchanged}"
        net = self.root / f"{name}.net"
        net.write_text(
            NET.format(kind=kind, source=sources[kind], norm=NORM if norm else "", top=top)
        )
        for seed in range(1, ranks + 1):
            text = SOLVER.format(net=net, seed=seed)
            (self.root / f"{name}.solver{seed}").write_text(text)
        script = self.root / "train.py"
        script.write_text(TRAIN)
        pattern, out = self.root / f"{name}.solver%d", self.root / name
        command = [
            self.python,
            str(script),
            str(pattern),
            str(STEPS),
            declared,
            exchanged,
            str(out),
        ]
        launcher = registry.load("launchers", "mpirun").make()
        self._do(launcher.argv(command, Ranks(ranks)))
        return [dict(np.load(f"{out}.{rank}.npz")) for rank in range(ranks)]


@pytest.fixture(scope="module")
def caffe(tmp_path_factory: pytest.TempPathFactory) -> Caffe:
    need("caffe")
    return Caffe(tmp_path_factory.mktemp("caffe"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    need("caffe")
    return containers.small_dataset(tmp_path_factory.mktemp("photos"), samples=48)


@pytest.mark.parametrize(
    ("pipeline", "order", "sharing"),
    [("lmdb", "stored", "stride"), ("jpeg", "shuffled", "stride"),
     ("jpeg", "shuffled", "disjoint")],
)  # fmt: skip
def test_caffe_trains_one_net_on_two_ranks(
    photos: Dataset, pipeline: str, order: str, sharing: str
) -> None:
    case = Case(
        label="x", format=pipeline, loader="native", trainer="caffe", image="caffe",
        trainer_options={"net": "small", "classes": 48}, launcher="mpirun", world_size=2, batch=4,
        workers=1, order=order, sharing=sharing, transform="crop224", location=photos.root, seed=3,
    )  # fmt: skip
    trial = Trial("t", case, "train", "-")  # whatever this machine's cache does meanwhile
    record = run_trial(trial, photos, 1, TrialSettings(limit_s=120))
    assert (record.status, record.reasons) == (VALID, ())
    for rank in record.ranks:
        ids = sample_order(
            48, order, seed=3, rank=rank.rank, world_size=2, batch=4, sharing=sharing
        )
        assert rank.order_digest == ids_digest(ids)  # held against the labels by the loader
        assert rank.notes["trainer"]["comm_s"] > 0
        assert rank.notes["trainer"]["ranks"] == 2
    assert len({rank.notes["trainer"]["weights_digest"] for rank in record.ranks}) == 1
    losses = {rank.notes["trainer"]["losses_digest"] for rank in record.ranks}
    assert len(losses) == 2, "each rank saw its own samples"
    assert sum(rank.bytes_needed for rank in record.ranks) == photos.bytes


def weights(kept: Dict[str, Any], *, without: str = "") -> Dict[str, np.ndarray]:
    facts = ("rows", "comm_s")
    return {
        n: w for n, w in kept.items() if n not in facts and not (without and n.startswith(without))
    }


def identical(a: Dict[str, np.ndarray], b: Dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(a[n].tobytes() == b[n].tobytes() for n in a)


@pytest.mark.parametrize("kind", ["Data", "HDF5Data"])
def test_caffes_layers_give_each_rank_its_stride(caffe: Caffe, kind: str) -> None:
    found = caffe.train(2, EACH, kind)
    for rank, kept in enumerate(found):
        expected = sample_order(ROWS, "stored", seed=0, rank=rank, world_size=2, batch=EACH)
        assert kept["rows"].reshape(-1).tolist() == expected[: STEPS * EACH].tolist()


def test_two_ranks_are_one_with_the_double_batch(caffe: Caffe) -> None:
    first, second = caffe.train(2, EACH)
    (single,) = caffe.train(1, 2 * EACH)
    assert identical(weights(first), weights(second))
    together = np.concatenate([first["rows"], second["rows"]], axis=1)
    assert np.sort(together, axis=1).tolist() == np.sort(single["rows"], axis=1).tolist()
    for name, weight in weights(single).items():
        assert np.abs(weights(first)[name] - weight).max() < 2e-6 * max(1, np.abs(weight).max())
    assert first["comm_s"] > 0
    assert single["comm_s"] == -1.0


def test_without_the_exchange_ranks_part(caffe: Caffe) -> None:
    first, second = caffe.train(2, EACH, exchanged="no")
    assert not identical(weights(first), weights(second))


def test_equal_weights_prove_nothing_about_rows(caffe: Caffe) -> None:
    """Undeclared solvers all read the same rows, and agree in every bit."""
    first, second = caffe.train(2, EACH, declared="no")
    assert identical(weights(first), weights(second))
    assert first["rows"].tolist() == second["rows"].tolist()


def test_with_batch_norm_weights_agree_and_statistics_do_not(caffe: Caffe) -> None:
    first, second = caffe.train(2, EACH, norm=True)
    assert identical(weights(first, without="norm."), weights(second, without="norm."))
    assert not identical(weights(first), weights(second))
    (single,) = caffe.train(1, 2 * EACH, norm=True)
    apart = [
        np.abs(weights(first)[n] - w).max() for n, w in weights(single, without="norm.").items()
    ]
    assert max(apart) > 1e-5, "each rank normalises by its own half"
