"""The audit finds what a loader loses, repeats, drops or turns; every loader here passes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from iobench.run import audit
from iobench.worker.audit import CHECKS
from iobench.worker.library_defaults import DEFAULTS
from tests.build.rows import first, rows
from tests.capabilities import need

#: A loader that does each wrong thing, chosen by the file's name.
WRONG = """
import subprocess

import numpy as np
from iobench.core.cases import Batch
from iobench.core.errors import DatasetError
from iobench.core.members import LoaderBackend
from iobench.backends.loaders._batches import BatchMaker
from iobench.core import transforms

HOW = __name__.rpartition(".")[2]


class Wrong:
    queue_batches = 0

    def __init__(self, request):
        self.request = request
        self.maker = BatchMaker(request)
        self.helper = subprocess.Popen(["sleep", "600"]) if HOW == "gives_up" else None

    def processes(self):
        return [self.helper.pid] if self.helper else []

    def lost_its_helper(self):
        try:
            return self.helper.wait(0.2) is not None
        except subprocess.TimeoutExpired:
            return False

    def batches(self):
        request = self.request
        for k, ids in enumerate(request.batches()):
            if self.helper and k < 2 and self.lost_its_helper():
                if k == 0:
                    raise DatasetError("its process was killed")
                return
            if HOW == "repeats" and k == 1:
                ids = request.batches()[0]
            if HOW == "same_order":
                ids = np.sort(request.ids).reshape(-1, request.batch)[k]
            if HOW == "every_rank":
                ids = np.arange(request.batch) + k * request.batch
            data = np.empty((len(ids), *transforms.transform(request.transform).shape), np.float32)
            try:
                batch = self.maker.make(ids, data)
            except DatasetError:
                if HOW != "drops":
                    raise
                continue
            if HOW == "labels":
                batch = batch._replace(labels=batch.labels + 1)
            if HOW == "upside_down":
                batch = batch._replace(data=data[:, :, ::-1])
            yield batch

    def close(self):
        self.maker.close()
        if self.helper:
            self.helper.kill()
            self.helper.wait()


BACKEND = LoaderBackend(Wrong, "wrong", formats=frozenset({"jpeg"}))
"""
#: One that keeps everything, unless an option has it repeat a batch.
OPTION = WRONG.replace("def __init__(self, request):", "def __init__(self, request, *, bad=False):")
OPTION = OPTION.replace('HOW == "repeats"', "self.bad").replace(
    "        self.request = request", "        self.request, self.bad = request, bad"
)
OPTION = OPTION.replace('({"jpeg"}))', '({"jpeg"}), also_audited=({"bad": True},))')
EXPECTED = {
    "repeats": {"once"},
    "same_order": {"reshuffled"},
    "every_rank": {"ranks"},
    "drops": {"errors"},
    "labels": {"once"},
    "upside_down": {"pixels"},
    "gives_up": {"killed"},
}


def test_what_a_loader_does_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugins/loaders").mkdir(parents=True)
    for how in EXPECTED:
        (tmp_path / "plugins/loaders" / f"{how}.py").write_text(WRONG)
    monkeypatch.setenv("IOBENCH_PLUGINS", str(tmp_path / "plugins"))
    answers = list(audit.audit(tmp_path, list(EXPECTED), lambda line: None))
    found = {answer.pipeline.partition(":")[0]: set(answer.failed) for answer in answers}
    assert {how for how, wanted in EXPECTED.items() if not wanted <= found[how]} == set()
    assert {how for how, failed in found.items() if "killed" in failed} == {"gives_up"}
    assert all(list(answer.checks) == list(CHECKS) for answer in answers)


def test_the_options_that_a_loader_names_are_audited_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugins/loaders").mkdir(parents=True)
    (tmp_path / "plugins/loaders/optional.py").write_text(OPTION)
    monkeypatch.setenv("IOBENCH_PLUGINS", str(tmp_path / "plugins"))
    answers = audit.audit(tmp_path, ["optional"], lambda line: None)
    failed = {answer.name: answer.failed for answer in answers}
    assert list(failed) == ["optional:jpeg", "optional:jpeg bad=true"]
    assert failed["optional:jpeg"] == []
    assert "once" in failed["optional:jpeg bad=true"]


def test_only_the_forms_that_were_asked_for_are_audited(tmp_path: Path) -> None:
    answers = audit.audit(tmp_path, ["threads"], lambda line: None, only=["tar"])
    assert {(answer.pipeline, *answer.failed) for answer in answers} == {("threads:tar",)}


#: What a real run of a library's default shows, with these samples.
SHOWN = {
    "torch DistributedSampler without set_epoch": "4 of 4 ranks have the order of epoch 1 again",
    "torch DistributedSampler(drop_last=False)": "28 for 26 samples: 2 repeated, 0 lost",
    "torch IterableDataset with workers": "52 for 26 samples: 26 repeated, 0 lost",
    "DALIGenericIterator(last_batch_policy=FILL)": "epoch 1: 28 for 26 samples: 2 repeated, "
    "0 lost; epoch 2: 24 for 26 samples: 0 repeated, 2 lost",
    "SPDL build(max_failures=-1)": "25 for 26 samples: 0 repeated, 1 lost; no error",
    "WebDataset(resampled=True)": r"26 for 26 samples: (\d+) repeated, \1 lost",
    "WebDataset.with_epoch(samples) with workers": "52 for 26 samples: 26 repeated, 0 lost",
    "WebDataset(shardshuffle=100)": "1 order of shards in 2 epochs",
    "WebDataset(nodesplitter=split_by_node)": "8, 6, 6, 6 samples on 4 ranks",
    "WebDataset with fewer shards than workers": "1 shard, 2 workers: the epoch ends with "
    "ValueError",
    "Grain batch(drop_remainder=True), then mp_prefetch": "16 for 26 samples: 0 repeated, 10 lost",
    "Grain shuffle(seed), iterated once an epoch": "1 order in 2 epochs",
    "Grain DataLoader, ShardOptions(drop_remainder=False)": "24 for 26 samples: 0 repeated, 2 lost",
}
#: One of each library.
FIRST_DEFAULTS = [
    "torch DistributedSampler(drop_last=False)",
    "DALIGenericIterator(last_batch_policy=FILL)",
    "SPDL build(max_failures=-1)",
    "WebDataset(resampled=True)",
    "Grain batch(drop_remainder=True), then mp_prefetch",
]
NEEDS = {"DALI": "dali", "SPDL": "spdl", "WebD": "webdataset", "Grai": "grain"}


@pytest.mark.slow
@pytest.mark.parametrize("name", first(DEFAULTS, FIRST_DEFAULTS))
def test_what_a_librarys_default_does_is_seen_by_running_it(name: str, tmp_path: Path) -> None:
    need(NEEDS.get(name[:4], "torch"))
    default = DEFAULTS[name]
    found = {row.default: row for row in audit.library_defaults(
        tmp_path, [default.loader], lambda line: None, only=name
    )}  # fmt: skip
    assert list(found) == [name]
    pattern = SHOWN[name] if "resampled" in name else re.escape(SHOWN[name])
    assert re.fullmatch(pattern, found[name].shown)
    assert found[name].version[0].isdigit()
    assert found[name].instead


def test_a_default_whose_library_is_absent_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "webdataset.py").write_text("raise ImportError('No module named webdataset')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (row,) = audit.library_defaults(
        tmp_path, ["webdataset"], lambda line: None, only="WebDataset(resampled=True)"
    )
    assert not row.shown
    assert "No module named webdataset; `make setup-extra` installs webdataset" in row.absent


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "loader",
    [
        *rows(["threads"], ["torch", "dali", "spdl", "webdataset", "grain"]),  # the soonest first
        pytest.param("native", marks=pytest.mark.system),
    ],
)
def test_every_loader_keeps_what_it_promises(loader: str, tmp_path: Path) -> None:
    if loader == "native":
        need("caffe")
    # DALI waits for ever for a process of its own that was killed; what comes after is left out
    known = {"killed", "errors"} if loader == "dali" else set()
    for answer in audit.audit(tmp_path, [loader], lambda line: None):
        assert {*answer.failed} <= known, answer
