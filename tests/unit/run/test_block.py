"""A real block: arms that take turns, the same samples, one that fails, a driver that is killed."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from iobench.analysis.evidence import trial_window
from iobench.analysis.ranks import probed
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.errors import DatasetError
from iobench.core.protocols import Crossed
from iobench.core.records import FAILED, INVALID, VALID, CacheProof, IoCounters, Record
from iobench.host.agent import Agent
from iobench.run import copies
from iobench.run.block import STARTS, part, run_block
from iobench.run.trial import Attempt, TrialSettings
from tests.build import containers

SLICE_S = 0.05


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return containers.small_dataset(tmp_path_factory.mktemp("block") / "data", samples=64)


def block(data: Dataset, *arms: dict[str, Any], epochs: int = 6) -> list[Trial]:
    """Return the trials of one block; arms differ by these keys."""
    base = Case(
        format="jpeg", loader="threads", trainer="null", location=data.root, batch=8, workers=2
    )
    return [
        Trial(
            f"000{i}-t", dataclasses.replace(base, label=f"arm {i}", **keys), "load", "warm",
            contrast="c01", arm=f"arm {i}", block=1, position=i, epochs=epochs, slice_s=SLICE_S,
        )
        for i, keys in enumerate(arms)
    ]  # fmt: skip


def run(trials: list[Trial], data: Dataset, **settings: Any) -> list[Record]:
    return run_block(trials, data, [1] * len(trials), TrialSettings(**settings))


def test_arms_take_turns_over_the_same_samples(data: Dataset) -> None:
    trials = block(data, {}, {"loader": "torch"}, {"prefetch": 3})
    records = run(trials, data)
    assert [(r.status, r.reasons) for r in records] == [(VALID, ())] * 3
    assert len({r.ranks[0].order_digest for r in records}) == 1
    assert {sum(r.ranks[0].steps.samples) for r in records} == {6 * 64}
    turns = sorted((begun, ended, r.trial.arm) for r in records for begun, ended in r.slices.thawed)
    assert all(one[1] < next_[0] for one, next_ in zip(turns, turns[1:], strict=False))
    order, rounds = [arm for *_, arm in turns], min(len(r.slices.thawed) for r in records)
    assert rounds > 2
    assert order[: 3 * rounds] == order[:3] * rounds, "one order for all rounds"
    assert [len(r.slices.stop_s) for r in records] == [len(r.slices.thawed) for r in records]
    assert {r.slices.processes for r in records} == {1, 3}, "the DataLoader's workers are stopped"
    for record in records:
        window, rank = trial_window(record), record.ranks[0]
        ran = sum(end - begun for begun, end in record.slices.thawed)
        assert 0 < window.wall_s < ran < rank.steps.done_s[-1]
        assert record.slices.others_cpu_s > 0


def test_serial_probes_take_turns_and_count_the_time_that_they_ran(data: Dataset) -> None:
    trials = [dataclasses.replace(t, stage="probe") for t in block(data, {}, {}, epochs=20)]
    records = run(trials, data)
    assert [(r.status, r.reasons) for r in records] == [(VALID, ())] * 2
    assert len({r.ranks[0].order_digest for r in records}) == 1
    for record in records:
        (rank,) = record.ranks
        parts = probed(record)
        assert set(parts) == {"read_s", "decode_s", "transform_s"}
        assert {len(seconds) for seconds in parts.values()} == {1024}, "of 20 epochs of 64"
        assert len(record.slices.thawed) > 1
        ran = sum(end - begun for begun, end in record.slices.thawed)
        raw = {name: sum(rank.probe[name]) for name in parts}
        held = sum(raw.values()) - math.fsum(math.fsum(s) for s in parts.values())
        assert math.fsum(math.fsum(seconds) for seconds in parts.values()) < ran
        assert held > 0.5 * (len(record.slices.thawed) - 1) * SLICE_S, "it was stopped in a sample"


def test_epochs_are_shuffled_anew_in_one_loop(data: Dataset) -> None:
    (record, _) = run(block(data, {}, {"workers": 1}, epochs=2), data)
    twice = run(block(data, {}, {"workers": 1}, epochs=1), data)[0]
    assert record.ranks[0].order_digest != twice.ranks[0].order_digest
    assert record.ranks[0].bytes_needed == 2 * twice.ranks[0].bytes_needed


def test_cold_arms_read_a_copy_each_of_the_same_samples(data: Dataset, tmp_path: Path) -> None:
    trials = [
        dataclasses.replace(trial, cache="cold", copy=2 - i)
        for i, trial in enumerate(block(data, {}, {"loader": "torch"}, epochs=1))
    ]
    settings = TrialSettings()
    with contextlib.ExitStack() as undo:
        copies.make(trials, data, settings, undo)
        roots = {found.root for found in settings.copies.values()}
        assert len(roots) == 2
        assert all(Path(root).parent == Path(data.root).parent for root in roots)
        records = run_block(trials, data, [1, 1], settings)
    assert not settings.copies
    assert not any(Path(root).exists() for root in roots)
    assert [(r.status, r.reasons) for r in records] == [(VALID, ())] * 2
    assert len({r.ranks[0].order_digest for r in records}) == 1
    for record in records:
        assert record.cache.resident_before == 0
        assert record.cache.bytes_storage >= record.cache.bytes_needed, "each reads from the disk"


class Shared(Agent):
    """A node whose mounts count everybody's bytes: two arms need 1000 and 500, and are messages."""

    def __init__(self, crossed: int, *, one_mount: bool = True) -> None:
        self._crossed, self._one_mount = crossed, one_mount

    def others(self, path: Path) -> float | None:
        return 0.0

    def crossed(self, path: Path, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        return Crossed(self._crossed, "the mount's", whole=True)

    def same_mount(self, one: Path, other: Path) -> bool:  # type: ignore[override]
        return self._one_mount or one == other


@pytest.mark.parametrize(
    ("cache", "crossed", "one_mount", "left"),
    [
        ("cold", 1500, True, [1000, 500]),
        ("cold", 1400, True, [900, 400]),
        ("cold", 100, True, [0, 0]),
        ("cold", 1500, False, [None, None]),
        ("0.5", 1500, True, [None, None]),
        ("warm", 3, True, [3, 3]),
    ],
)
def test_what_a_mount_counts_for_all_arms_is_parted(
    data: Dataset, cache: str, crossed: int, one_mount: bool, left: list[int | None]
) -> None:
    """An arm has what the others cannot have had."""
    agent = Shared(crossed, one_mount=one_mount)
    tries = []
    for trial, needed in zip(block(data, {}, {"workers": 1}), (1000, 500), strict=True):
        attempt = Attempt(dataclasses.replace(trial, cache=cache), data, TrialSettings(agent=agent))
        attempt.where = Path(trial.id)
        proof = CacheProof(bytes_storage=crossed, counter="the mount's", others_bytes=0)
        attempt.take(dataclasses.replace(proof, bytes_needed=needed, messages_bytes=10))
        tries.append(attempt)
    part(tries, agent)
    assert [attempt.proof.bytes_storage for attempt in tries] == left
    assert [attempt.proof.others_bytes is None for attempt in tries] == [left[0] is None] * 2
    assert ("took turns" in tries[0].proof.counter) == (left[0] is None)
    if cache == "cold" and one_mount:
        assert [attempt.proof.messages_bytes for attempt in tries] == [20, 20]


def test_files_read_in_place_are_not_copied(data: Dataset) -> None:
    (trial, _) = block(data, {}, {})
    in_place = dataclasses.replace(data, in_place=True)
    with contextlib.ExitStack() as undo, pytest.raises(DatasetError, match="read in place"):
        copies.make([dataclasses.replace(trial, copy=1)], in_place, TrialSettings(), undo)


def test_later_blocks_start_their_arms_at_once_and_measure_no_start(data: Dataset) -> None:
    arms: list[dict[str, Any]] = [{}, {"loader": "torch"}, {}]
    first, later = (
        run([dataclasses.replace(t, block=number) for t in block(data, *arms)], data)
        for number in (STARTS, STARTS + 1)
    )
    assert [(r.status, r.reasons) for r in (*first, *later)] == [(VALID, ())] * 6
    assert all(record.ready_s > 0 for record in first)
    assert [record.ready_s for record in later] == [0.0] * 3
    assert all(len(record.slices.thawed) > 1 for record in later)
    orders = [{r.ranks[0].order_digest for r in records} for records in (first, later)]
    assert [len(order) for order in orders] == [1, 1]


@pytest.mark.parametrize("number", [1, STARTS + 1])
@pytest.mark.parametrize("hurt", [0, 1])
def test_an_arm_that_fails_spoils_the_block(data: Dataset, hurt: int, number: int) -> None:
    arms: list[dict[str, Any]] = [{}, {}]
    arms[hurt] = {"loader_options": {"walk": True}}
    records = run([dataclasses.replace(t, block=number) for t in block(data, *arms)], data)
    assert records[hurt].status == FAILED
    assert "walk: jpeg is not walked" in records[hurt].reasons[0]
    other = records[1 - hurt]
    assert other.status == INVALID
    assert other.reasons[0].startswith(f"arm {hurt}, which took turns with it: ")
    assert not left()


class Lost(Agent):
    """The kernel ends a rank before its processes are looked for."""

    def processes(self, name: str, pids: Sequence[int]) -> list[int]:
        """Return none, once the rank has gone."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return []


@pytest.mark.parametrize("number", [1, STARTS + 1])
def test_an_arm_that_ended_before_it_was_stopped_is_one_that_failed(
    data: Dataset, number: int
) -> None:
    trials = [dataclasses.replace(t, block=number) for t in block(data, {}, {})]
    first, other = run(trials, data, agent=Lost())
    assert (first.status, other.status) == (FAILED, INVALID)
    assert "SIGKILL" in first.reasons[0]


def test_a_limit_counts_the_time_awake(data: Dataset) -> None:
    records = run(block(data, {}, {}, epochs=200), data, limit_s=6.0)
    failed = [r for r in records if r.status == FAILED]
    assert len(failed) == 1
    assert "ran longer than limit_s = 6" in failed[0].reasons[0]
    awake = sum(end - begun for begun, end in failed[0].slices.thawed) if failed[0].slices else 0.0
    assert awake <= 6.0
    assert not left()


def left() -> list[str]:
    """Return the workers that this process's blocks have left."""
    return [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"iobench.worker\0/tmp/iobench-" in _read(path)
        and str(os.getpid()).encode() == _parent(path.parent)
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _parent(folder: Path) -> bytes:
    return (_read(folder / "stat").rpartition(b")")[2].split() or [b"", b""])[1]
