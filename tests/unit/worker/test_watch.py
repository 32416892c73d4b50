"""``iobench.watch(loader)``: nothing is lost or changed, and what it measures can be explained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest

import iobench
from iobench.analysis.suite import analyse
from iobench.core.cases import Case
from iobench.core.errors import TrialFailed
from iobench.run import script, store
from iobench.worker import watch as watched
from tests.capabilities import need

LISTS = [[1, 2, 3], [4, 5]]
STAY = {"persistent_workers": True}

SCRIPT = """
import iobench

class Loader:
    num_workers, batch_size = 0, 4
    def __len__(self):
        return 50
    def __iter__(self):
        return iter([[i] * 4 for i in range(50)])

seen = []
for batch in iobench.watch(Loader()):
    seen.append(batch)
open("after-the-loop", "w").write(str(len(seen)))
"""

SHORT_EPOCHS = """
import time
import iobench
from torch.utils.data import DataLoader

def started(worker):
    time.sleep(0.5)

loader = DataLoader(list(range(4)), batch_size=2, num_workers=1, worker_init_fn=started)
for batch in iobench.watch(loader):
    pass
"""


def test_without_a_folder_or_an_order_batches_pass_unchanged(tmp_path: Path) -> None:
    assert list(iobench.watch(LISTS)) == LISTS
    assert not any(tmp_path.iterdir())
    with pytest.raises(AttributeError, match="no attribute 'watched'"):
        _ = iobench.watched


@pytest.mark.parametrize(("batch", "samples"), [
    (np.zeros((7, 3)), 7), ([np.zeros((5, 3)), np.zeros(5)], 5), ({"x": np.zeros((4, 1))}, 4),
    (([1, 2, 3], [0, 0, 0]), 3), ([1, 2], 2), (["a", "b", "c"], 3), (3, 1), (np.float64(1), 1),
])  # fmt: skip
def test_samples_of_a_batch(batch: Any, samples: int) -> None:
    assert watched.samples_of(batch) == samples


def test_each_epoch_is_a_record_that_can_be_analysed(tmp_path: Path) -> None:
    folder = tmp_path / "watched"
    for _ in range(2):
        assert list(iobench.watch(LISTS * 6, str(folder))) == LISTS * 6
    kept = store.find(folder)
    records = kept.records()
    assert [sum(r.ranks[0].steps.samples) for r in records] == [30, 30]
    suite = analyse(kept.plan(), records)
    (case,) = suite.pipelines
    assert case.rate("train", "warm") is not None


def test_a_loop_that_is_left_early_keeps_its_whole_steps(tmp_path: Path) -> None:
    for n, _ in enumerate(iobench.watch(LISTS * 6, str(tmp_path / "w"))):
        if n == 4:
            break
    (record,) = store.find(tmp_path / "w").records()
    assert sum(record.ranks[0].steps.samples) == 10


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> List[str]:
    monkeypatch.chdir(tmp_path)
    root = Path(iobench.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), *sys.path[1:]]))
    (tmp_path / "loop.py").write_text(SCRIPT)
    return [sys.executable, "loop.py"]


def test_started_by_its_user_a_script_does_what_it_did(command: List[str]) -> None:
    subprocess.run(command, check=True)
    assert Path("after-the-loop").read_text() == "50"


def test_a_script_s_parts_are_measured_and_nothing_after_the_loop_runs(command: List[str]) -> None:
    usual = script.settings_of(command, 0.2, 60.0)
    assert (usual.workers, usual.batch, usual.samples) == (0, 4, 200)  # an epoch's
    for trial in script.ladder(usual, 1):
        rank = script._ran(command, trial, {}, 0.05, 60.0)
        assert len(rank.steps.done_s) > 50, trial.stage  # an epoch is shorter: others follow
        assert 0.05 < rank.steps.done_s[-1] < 10
    assert not Path("after-the-loop").exists()


def test_what_gives_one_epoch_alone_is_measured_to_its_end(command: List[str]) -> None:
    text = SCRIPT.replace("iobench.watch(Loader())", "iobench.watch(iter(Loader()))")
    Path("loop.py").write_text(text)
    trial = script.ladder(Case(trainer="torch"), 1)[0]
    assert len(script._ran(command, trial, {}, 60.0, 60.0).steps.done_s) == 50


def test_between_epochs_workers_start_unless_they_stay(command: List[str]) -> None:
    """Epochs of two batches: each starts its workers, which take half a second, or does not."""
    need("torch")
    Path("loop.py").write_text(SHORT_EPOCHS)
    (trial, *_) = script.ladder(Case(trainer="torch", workers=1), 1)
    kept = script.changed(Case(workers=1, prefetch=4), Case(workers=1, prefetch=2))
    began = script._ran(command, trial, {}, 2.0, 60.0)
    stays = script._ran(command, trial, kept, 2.0, 60.0)
    assert len(began.steps.done_s) > 2  # more than an epoch
    assert len(stays.steps.done_s) > 10 * len(began.steps.done_s)


def test_a_script_without_the_loop_is_named(command: List[str]) -> None:
    Path("loop.py").write_text("print('no loop here')")
    with pytest.raises(TrialFailed, match=r"measured nothing: no loop here; loop over iobench"):
        script.settings_of(command, 0.1, 60.0)
    with pytest.raises(TrialFailed, match="cannot be started"):
        script.settings_of(["./nothing"], 0.1, 60.0)


@pytest.mark.parametrize(("case", "settings"), [
    ({}, {}), ({"workers": 4}, {"num_workers": 4, **STAY}),
    ({"workers": 4, "prefetch": 8}, {"num_workers": 4, "prefetch_factor": 8, **STAY}),
    ({"workers": 1, "loader_options": {"in_order": False}},
     {"num_workers": 1, "in_order": False, **STAY}),
    ({"trainer_options": {"threads": 2}}, {"threads": 2}),
])  # fmt: skip
def test_what_a_case_has_otherwise_is_changed_alone(
    case: Dict[str, Any], settings: Dict[str, Any]
) -> None:
    usual = Case(workers=0, trainer="torch")
    made = Case(**{"workers": 0, "trainer": "torch", **case})
    assert script.changed(made, usual) == settings


def test_an_adjusted_dataloader_has_the_same_samples_and_order() -> None:
    need("torch")
    import torch
    from torch.utils.data import DataLoader

    def loader(**words: Any) -> Any:
        generator = torch.Generator().manual_seed(3)
        return DataLoader(list(range(20)), batch_size=4, shuffle=True, generator=generator, **words)

    before = [batch.tolist() for batch in loader()]
    changed = watched.adjusted(loader(), {"num_workers": 1, "prefetch_factor": 3})
    assert (changed.num_workers, changed.prefetch_factor) == (1, 3)
    assert [batch.tolist() for batch in changed] == before
    back = watched.adjusted(loader(num_workers=2), {"num_workers": 0})
    assert [batch.tolist() for batch in back] == before
    with pytest.raises(TypeError, match="DataLoader"):
        watched.adjusted([1], {"num_workers": 1})
    assert json.dumps(script.changed(Case(workers=2), Case(workers=0))) != "{}"
