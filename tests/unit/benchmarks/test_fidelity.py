"""The hand-written loop takes turns with iobench's own, and its readings are judged alike."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks import by_hand, fidelity
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.errors import TrialFailed
from iobench.core.records import FAILED, INVALID, VALID
from iobench.run.block import take_turns
from iobench.run.trial import Attempt
from tests.build import containers
from tests.capabilities import need

CASE = Case(loader="torch", batch=4, workers=2, prefetch=2)


def test_its_clock_readings_are_stored_as_iobench_stores_its_own() -> None:
    steps = by_hand.steps_of(CASE, 10.0, [10.5 + i for i in range(20)], 80)
    assert steps.request_s[:3] == [0.0, 0.5, 1.5]
    assert steps.ready_s == steps.done_s == [0.5 + i for i in range(20)]
    assert steps.warmup == by_hand.warmup_of(CASE, 20) == 4
    with pytest.raises(TrialFailed, match="79 samples in 20 steps of 4"):
        by_hand.steps_of(CASE, 10.0, [10.5 + i for i in range(20)], 79)


@pytest.mark.parametrize(
    ("ratio", "noise", "met"), [(1.01, 0.001, True), (1.03, 0.001, False), (1.0, 0.03, False)]
)
def test_the_ratio_and_its_interval_are_judged(ratio: float, noise: float, met: bool) -> None:
    pairs = [
        {"iobench": ratio * (1 + noise * (-1) ** i), "handwritten": 1 - 1e-5 * i} for i in range(16)
    ]
    row = fidelity.judge("torch:jpeg", pairs)
    assert row["met"] is met
    assert row["low"] <= row["ratio"] <= row["high"]


@pytest.mark.parametrize("pipeline", fidelity.ARMS)
def test_the_interval_of_the_first_arms_is_to_be_narrower(pipeline: str) -> None:
    pairs = [{"iobench": 1 + 0.008 * (-1) ** i, "handwritten": 1.0} for i in range(16)]
    row = fidelity.judge(pipeline, pairs)
    assert 0.007 < row["half_width"] < 0.009
    assert row["met"] is (pipeline not in fidelity.FIRST)


def test_blocks_follow_until_the_interval_is_narrow_and_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ran(noise: float, most: int = 100) -> int:
        def pair(case: Case, found: Dataset, block: int, *_: float) -> dict[str, float]:
            return {"iobench": 1 + noise * (-1) ** block, "handwritten": 1.0 + 1e-6 * block}

        monkeypatch.setattr(fidelity, "pair", pair)
        rows = fidelity.kept(args)
        args.most = most
        fidelity.measured(case, data, args, rows)
        assert json.loads(args.json.read_text()) == list(rows.values())
        return int(rows["torch:lmdb"]["pairs"])

    monkeypatch.setattr(fidelity, "epochs_of", lambda *_: 1)
    case = Case(label="torch:lmdb", loader="torch")
    data = Dataset("r", "n", 1, 1, 1, 1, "d", "s")
    args = argparse.Namespace(blocks=16, loop_s=20.0, slice_s=0.1, json=tmp_path / "f.json")
    assert ran(0.02, most=18) == 18, "wide, and no more blocks allowed"
    assert ran(0.001) > 18, "it goes on from those"
    assert ran(0.5) == ran(0.001), "narrow enough: no block more"
    args.json = tmp_path / "other.json"
    assert ran(0.001) == 16


@pytest.mark.breadth
def test_both_loops_take_turns(tmp_path: Path) -> None:
    need("torch")
    data = containers.small_dataset(tmp_path / "data", samples=64)
    args = argparse.Namespace(batch=4, workers=2, prefetch=2, samples=64)
    case = fidelity.case_of("torch:jpeg", data, args)
    tries = [
        kind(
            Trial(str(i), case, "load", "warm", arm=str(i), epochs=3, slice_s=0.05), data,
            fidelity.SETTINGS,
        )
        for i, kind in enumerate((Attempt, by_hand.ByHand))
    ]  # fmt: skip
    take_turns(tries, fidelity.SETTINGS.agent)
    records = [one.record(1, at_once=2) for one in tries]
    assert [(r.status, r.reasons) for r in records] == [(VALID, ())] * 2
    assert [sum(r.ranks[0].steps.samples) for r in records] == [192, 192]
    assert [r.slices.processes for r in records] == [3, 3]
    turns = sorted(slice_ for r in records for slice_ in r.slices.thawed)
    assert all(one[1] < next_[0] for one, next_ in zip(turns, turns[1:], strict=False))
    assert all(fidelity.seconds(r) > 0 for r in records)


def test_a_loop_that_fails_spoils_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = containers.small_dataset(tmp_path / "data", samples=64)
    monkeypatch.setattr(by_hand, "HANDWRITTEN", tmp_path / "none.py")
    trial = Trial("1", fidelity.case_of("torch:jpeg", data, argparse.Namespace(
        batch=4, workers=0, prefetch=2, samples=64)), "load", "warm", slice_s=0.05)  # fmt: skip
    tries = [kind(trial, data, fidelity.SETTINGS) for kind in (by_hand.ByHand, Attempt)]
    take_turns(tries, fidelity.SETTINGS.agent)
    assert [one.status for one in tries] == [FAILED, INVALID]
    assert "No such file" in tries[0].reasons[0]
