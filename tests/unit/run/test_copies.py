"""Copies for cold trials: which trials read one first, and that nobody has read it before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iobench.core.cases import Case, Dataset, Trial
from iobench.core.errors import DatasetError
from iobench.core.records import BY_ANOTHER, FAILED, FIRST_TOUCH, UNKNOWN, VALID
from iobench.host.agent import LOCAL, Agent
from iobench.run import copies, placed_folders
from iobench.run.block import run_block
from iobench.run.nodes import Nodes
from iobench.run.trial import TrialSettings, run_trial
from tests.build import containers

ASKED = TrialSettings(first_touch=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return containers.small_dataset(tmp_path_factory.mktemp("copies") / "data", samples=32)


def trial(data: Dataset, stage: str = "read", cache: str = "cold", **keys: Any) -> Trial:
    case = Case(loader="threads", trainer="null", location=data.root, batch=8, workers=1)
    return Trial("t", dataclasses.replace(case, **keys), stage, cache)


@pytest.mark.parametrize(
    ("stage", "cache", "keys", "first"),
    [
        ("read", "cold", {}, True),
        ("ceiling", "cold", {}, True),
        ("files", "cold", {}, True),
        ("read", "warm", {}, False),
        ("read", "0.5", {}, False),
        ("read", "steady", {}, False),
        ("requests", "cold", {}, False),  # its points read the same files again
        ("start", "cold", {}, False),  # the software's
        ("read", "cold", {"placement": "staged"}, False),
        ("read", "cold", {"format": "null", "loader": "null"}, False),
    ],
)
def test_cold_trials_that_read_once_read_a_copy_first(
    data: Dataset, stage: str, cache: str, keys: dict[str, Any], first: bool
) -> None:
    planned = trial(data, stage, cache, **keys)
    assert copies.touches_first(planned, ASKED) == first
    assert not copies.touches_first(planned, TrialSettings())


class Watching(Agent):
    """Keeps which files were warmed, or looked at for what is resident, below a copy."""

    def __init__(self) -> None:
        self.warmed: list[Path] = []
        self.proven: list[Path] = []

    def warm(self, files: Iterable[Path], **how: Any) -> None:  # type: ignore[override]
        self.warmed += files

    def residency(self, files: Iterable[Path]) -> Any:  # type: ignore[override]
        self.proven += (found := list(files))
        return Agent.residency(found)


def test_a_trial_reads_a_copy_that_nobody_has_read(data: Dataset) -> None:
    agent = Watching()
    record = run_trial(trial(data), data, 1, dataclasses.replace(ASKED, agent=agent))
    assert (record.status, record.reasons) == (VALID, ())
    assert record.cache.beyond == FIRST_TOUCH
    assert sum(record.ranks[0].steps.samples) == 32
    roots = {path.relative_to(Path(data.root).parent).parts[0] for path in agent.proven}
    (root,) = roots
    assert root.startswith(placed_folders.PREFIX)
    assert not agent.warmed
    assert not (Path(data.root).parent / root).exists()
    assert record.mount["mount_point"]


def test_other_trials_read_the_dataset_itself(data: Dataset) -> None:
    record = run_trial(trial(data, cache="warm"), data, 1, ASKED)
    assert record.cache.beyond == UNKNOWN


def test_arms_that_take_turns_read_a_copy_first_each(data: Dataset) -> None:
    arms = [
        dataclasses.replace(
            trial(data, "load"), id=f"000{i}-t", contrast="c01", arm=f"arm {i}", block=1,
            position=i, slice_s=0.05, copy=i,
        )
        for i in (1, 2)
    ]  # fmt: skip
    before = {*Path(data.root).parent.iterdir()}
    records = run_block(arms, data, [1, 1], ASKED)
    assert [(r.status, r.reasons) for r in records] == [(VALID, ())] * 2
    assert {r.cache.beyond for r in records} == {FIRST_TOUCH}
    assert {*Path(data.root).parent.iterdir()} == before
    assert not ASKED.copies, "and none is made for the turns"


class Elsewhere:
    """An agent of another node, which keeps what it was asked for."""

    node = "elsewhere"

    def __init__(self) -> None:
        self.copied: list[tuple[Path, Path]] = []
        self.settled: list[Path] = []

    def copy(self, pairs: Sequence[tuple[Path, Path]]) -> None:
        self.copied += pairs
        LOCAL.copy(pairs)

    def settle(self, path: Path) -> None:
        self.settled.append(path)
        LOCAL.settle(path)


@pytest.mark.parametrize(("node", "written"), [("elsewhere", True), ("here", False)])
def test_another_node_writes_the_copy_where_there_is_one(
    data: Dataset, node: str, written: bool
) -> None:
    """A case on one node runs on the driver's."""
    other: Any = Elsewhere()
    other.node = LOCAL.name() if node == "here" else node
    several = Nodes(["h1", "h2"], [other, other], "")
    record = run_trial(trial(data), data, 1, dataclasses.replace(ASKED, nodes=several))
    assert (record.status, record.reasons) == (VALID, ())
    assert (len(other.copied), len(other.settled)) == ((32, 1) if written else (0, 0))
    assert record.cache.beyond == (f"{FIRST_TOUCH}, {BY_ANOTHER}" if written else FIRST_TOUCH)


def test_what_cannot_be_copied_is_refused(data: Dataset) -> None:
    in_place = dataclasses.replace(data, in_place=True)
    with pytest.raises(DatasetError, match=r"read in place, and first_touch .* leave --in-place"):
        copies.check([trial(data).case], in_place)
    record = run_trial(trial(data), in_place, 1, ASKED)
    assert record.status == FAILED
    assert "read in place" in record.reasons[0]


def test_a_dataset_without_a_folder_above_it_is_refused(
    data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies.LOCAL, "same_mount", lambda one, other: False, raising=False)
    with pytest.raises(DatasetError, match="where its filesystem is mounted"):
        copies.check([trial(data).case], data)


def test_a_copy_without_room_is_refused(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=10))
    with pytest.raises(DatasetError, match=r"a copy of jpeg for first_touch needs .* MB free"):
        copies.check([trial(data).case], data)
