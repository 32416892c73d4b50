"""Data parallel training for real: ranks exchange gradients by gloo, whoever started them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.core import registry
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.dataset import load_index
from iobench.core.order import add_sums, multiset_sum, remainder, sample_order
from iobench.core.records import VALID, Record
from iobench.data import convert
from iobench.run.trial import TrialSettings, run_trial
from iobench.worker.rank import ids_digest
from tests.build import containers
from tests.build.datasets import indexed
from tests.build.rows import rows
from tests.capabilities import need

pytestmark = pytest.mark.system

#: Rank 1's batches come late.
LATE = """
import time
from iobench.backends.loaders.null import NullLoader
from iobench.core.members import LoaderBackend

class LateLoader(NullLoader):
    def batches(self):
        for batch in super().batches():
            time.sleep(0.1 * self._request.rank)
            yield batch

BACKEND = LoaderBackend(LateLoader, "rank 1 is late", formats=frozenset({"null"}),
                        native=frozenset({"null"}))
"""


#: Keeps the labels of the samples that it gets, as they are stored beside these.
SEEN = """
import numpy as np
from iobench.core.members import TrainerBackend

class Seen:
    feeds_itself = False
    device = "cpu"
    def __init__(self, *, batch: int, rank: int = 0, world_size: int = 1):
        self.labels = []
    def step(self, batch):
        self.labels += np.asarray(batch.labels).ravel().tolist()
    def sync(self):
        pass
    def describe(self):
        return {"kind": "seen", "labels": " ".join(map(str, self.labels))}
    def close(self):
        pass

BACKEND = TrainerBackend(Seen, "keeps labels", ranks=True)
"""


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    """61 samples that nobody reads."""
    return indexed(tmp_path / "data", 61, size=10, classes=3, digest="d")


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add the loader ``late`` and the trainer ``seen``."""
    folder, members = tmp_path / "plugins", {"loaders/late": LATE, "trainers/seen": SEEN}
    for axis in registry.AXES:
        (folder / axis).mkdir(parents=True)
    for name, text in members.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setenv("IOBENCH_PLUGINS", str(folder))
    yield
    for axis, _, name in (each.partition("/") for each in members):
        found = str(folder / axis)
        if found in (path := registry._package(axis).__path__):
            path.remove(found)
        sys.modules.pop(f"iobench.backends.{axis}.{name}", None)


def run(data: Dataset, stage: str = "train", **keys: Any) -> Record:
    need("torch")
    if keys["launcher"] == "mpirun":
        need("mpirun")
    case = Case(**{
        "label": "x", "format": "null", "loader": "null", "transform": "cifar32", "world_size": 2,
        "batch": 4, "workers": 0, "location": data.root, "seed": 3, **keys,
    })  # fmt: skip
    images = {}
    if case.runtime != "bare":
        containers.needs(case)
        images = containers.images_of(case)
    settings = TrialSettings(limit_s=120.0, compute_s=0.5, images=images)
    record = run_trial(Trial("t", case, stage, "-"), data, 1, settings)
    assert (record.status, record.reasons) == (VALID, ())
    return record


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """47 samples, each of a class of its own."""
    need("lmdb")
    need("hdf5")
    made = containers.small_dataset(tmp_path_factory.mktemp("photos"), samples=47)
    convert.convert(made, "tar")
    return made


@pytest.mark.parametrize(("world_size", "whole"), [(3, 42), (7, 42)])
def test_processes_read_every_sample_once_but_the_stated_remainder(
    photos: Dataset, world_size: int, whole: int
) -> None:
    """Each rank is a process of its own, which digests the ids of the samples that it read."""
    record = run(
        photos, "read", launcher="mpirun", loader="threads", format="lmdb", workers=1, batch=2,
        world_size=world_size, trainer="null", order="stored",
    )  # fmt: skip
    assert len({rank.pid for rank in record.ranks}) == world_size
    assert add_sums([rank.ids_sum for rank in record.ranks]) == multiset_sum(np.arange(whole))
    assert sum(rank.bytes_needed for rank in record.ranks) < photos.bytes
    assert remainder(photos.samples, 2, world_size) == photos.samples - whole


#: Pipeline, ranks, how many of the samples they are given.
GIVEN = [
    ("torch:lmdb", 2, 44),
    ("dali:jpeg", 2, 44),
    ("threads:tar", 4, 40),
    ("threads:lmdb", 7, 42),
]
GIVEN_TOO = [
    *((p, 2, 44) for p in ("torch:jpeg", "torch:hdf5", "torch:tar")),
    *((p, 4, 40) for p in ("torch:hdf5", "dali:jpeg")),
    *((p, 7, 42) for p in ("threads:jpeg", "dali:jpeg", "torch:lmdb")),
]


@pytest.mark.parametrize(("pipeline", "world_size", "whole"), rows(GIVEN, GIVEN_TOO))
def test_processes_are_given_every_sample_once_but_the_stated_remainder(
    photos: Dataset, plugged: None, pipeline: str, world_size: int, whole: int
) -> None:
    """By what is stored: each sample's label is its own, and the trainers of all ranks keep them.

    47 samples divide by none of these; the remainder is the end of the order, and no other.
    """
    loader, _, form = pipeline.partition(":")
    if loader == "dali":
        need("dali")
    record = run(
        photos, launcher="mpirun", loader=loader, format=form, workers=1, batch=2,
        world_size=world_size, trainer="seen", order="stored",
    )  # fmt: skip
    assert len({rank.pid for rank in record.ranks}) == world_size
    label_of = load_index(photos).labels.tolist()
    assert len({*label_of}) == photos.samples
    seen = [int(x) for r in record.ranks for x in r.notes["trainer"]["labels"].split()]
    assert sorted(seen) == sorted(label_of[:whole])
    assert add_sums([rank.ids_sum for rank in record.ranks]) == multiset_sum(np.arange(whole))
    assert {sum(rank.steps.samples) for rank in record.ranks} == {whole // world_size}
    assert remainder(photos.samples, 2, world_size) == photos.samples - whole


@pytest.mark.parametrize(
    ("launcher", "runtime", "scope"),
    [
        ("mpirun", "bare", ""),
        ("torchrun", "bare", ""),
        ("torchrun", "apptainer", "rank"),
        ("torchrun", "apptainer", "node"),
    ],
)
def test_ranks_train_one_net(data: Dataset, launcher: str, runtime: str, scope: str) -> None:
    record = run(
        data, launcher=launcher, runtime=runtime, scope=scope, trainer="torch",
        loader_options={"data": "resident"},
        trainer_options={"net": "resnet44cifar", "learning_rate": 0.5},
    )  # fmt: skip
    assert record.runtime.get("scope", "") == scope
    spaces = {rank.fingerprint["mount_namespace"] for rank in record.ranks}
    assert len(spaces) == (2 if scope == "rank" else 1)
    trainers = [rank.notes["trainer"] for rank in record.ranks]
    assert len({t["weights_digest"] for t in trainers}) == 1
    assert len({t["last_loss"] for t in trainers}) == 2, "each rank saw labels of its own"
    for rank, facts in zip(record.ranks, trainers, strict=True):
        ids = sample_order(61, "shuffled", seed=3, rank=rank.rank, world_size=2, batch=4)
        assert rank.order_digest == ids_digest(ids)
        assert len(rank.steps.peers_s) == len(rank.steps.exchange_s) == len(rank.steps.done_s) == 7
        assert (facts["ranks"], facts["comm_bytes"]) == (2, 4 * facts["parameters"])
        assert facts["comm_s"] > 0
        assert math.isfinite(facts["last_loss"])


def test_a_peers_late_batches_are_no_communication(data: Dataset, plugged: None) -> None:
    record = run(
        data, launcher="mpirun", loader="late", trainer="emulated",
        trainer_options={"step_s": 0.01, "exchange_bytes": 400_000, "buckets": 2},
    )  # fmt: skip
    prompt, tardy = (rank.steps for rank in record.ranks)
    assert sum(tardy.peers_s) < sum(prompt.peers_s), "it is the others who wait"
    assert sum(prompt.exchange_s) < sum(prompt.peers_s)
    last = [min(both) for both in zip(prompt.peers_s, tardy.peers_s, strict=True)]
    assert max(last) < 1e-6, "who comes last waits for nobody: the token's way is the network's"
    for waited, exchanged in ((s.peers_s, s.exchange_s) for s in (prompt, tardy)):
        assert len(waited) == len(exchanged) == 7
        assert min(waited) >= 0
    assert {rank.notes["trainer"]["comm_bytes"] for rank in record.ranks} == {400_000}


def test_one_rank_alone_exchanges_nothing(data: Dataset) -> None:
    options = {"step_s": 0.001, "exchange_bytes": 400_000}
    record = run(data, "alone", launcher="mpirun", trainer="emulated", trainer_options=options)
    (rank,) = record.ranks
    assert (list(rank.steps.peers_s), "comm_s" in rank.notes["trainer"]) == ([], False)
