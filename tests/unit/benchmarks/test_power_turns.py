"""The extra work is in the stage that it is meant for, and the comparisons are judged together."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import extra_work, power_turns
from iobench.core import registry
from iobench.core.cases import Case, Trial
from iobench.core.dataset import load_index
from iobench.data.convert import convert
from iobench.run.command import start
from iobench.run.trial import TrialSettings, run_trial
from iobench.spec import load
from tests.build import containers
from tests.capabilities import need

PROBED = ("read_s", "decode_s")


@pytest.mark.breadth
@pytest.mark.parametrize(("stage", "part"), [("read", "read_s"), ("decode", "decode_s")])
def test_the_extra_work_is_in_its_stage(
    stage: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("torch")
    monkeypatch.setenv("IOBENCH_PLUGINS", "")
    extra_work.plug_in(tmp_path / "plugins", 1_000_000)
    data = containers.small_dataset(tmp_path / "data", samples=16)
    convert(data, extra_work.FORMAT, content="jpeg")
    base = Case(format=extra_work.FORMAT, loader="torch", trainer="null", location=data.root,
                batch=4, samples=16)  # fmt: skip
    parts = {}
    for runtime in ("bare", f"slow_{stage}"):
        case = dataclasses.replace(base, runtime=runtime)
        record = run_trial(Trial(runtime, case, "probe", "warm"), data, 1, TrialSettings())
        assert record.status == "VALID", record.reasons
        probe = record.ranks[0].probe
        parts[runtime] = {name: min(probe[name]) for name in PROBED}
    (more,) = (name for name in PROBED if parts[f"slow_{stage}"][name] > 0.02)
    assert more == part
    assert all(seconds < 0.02 for seconds in parts["bare"].values())


def test_the_runtime_gives_its_count_to_the_worker_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IOBENCH_PLUGINS", "")
    extra_work.plug_in(tmp_path, 1)
    data = containers.small_dataset(tmp_path / "data", samples=16)
    argv = start(Case(runtime="slow_decode"), data, tmp_path, {}, name="n").argv
    assert argv[0] == "env"
    assert argv[1].startswith("IOBENCH_EXTRA_DECODE=")
    assert not any(name.startswith("IOBENCH_EXTRA") for name in os.environ)
    assert registry.load("runtimes", "slow_read").summary == "bare metal, more work to read"


def test_the_outside_loop_does_the_extra_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("torch")
    monkeypatch.setattr(extra_work, "DISCARDED", 0)
    monkeypatch.setattr(extra_work, "SECONDS", 0.5)
    data = containers.small_dataset(tmp_path, samples=16)
    files = [str(name) for name in load_index(data).files]
    found = extra_work.outside(data.jpeg_root, files, 200_000, 1)
    assert found
    assert all(more > plain for more, plain in found)


def test_making_batches_is_most_of_an_outside_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("torch")
    monkeypatch.setattr(extra_work, "STEPS", 12)
    data = containers.small_dataset(tmp_path, samples=16)
    files = [str(name) for name in load_index(data).files]
    assert 0.3 < extra_work.made(data.jpeg_root, files, 2, 1) < 1


def test_the_next_count_is_in_proportion() -> None:
    assert extra_work.next_count(1000, 1.10, 0.05) == 500
    assert extra_work.next_count(1000, 0.99, 0.05) == 50_000
    assert extra_work.next_count(1, 2.0, 0.05) == 1


@pytest.mark.parametrize("train", [False, True])
def test_the_spec_of_a_comparison_is_one(
    train: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IOBENCH_PLUGINS", "")
    extra_work.plug_in(tmp_path, 1)
    wanted = load.parse(power_turns.document(1, "read", 0.02, 2.0, train), where="test")
    assert [c.stage for c in wanted.contrasts] == ["load", "train"][: 1 + train]
    assert wanted.contrasts[0].margin == 0.01


def row(
    slowed: str = "read", attributed: str = "read", verdict: str = "SLOWER", **changes: Any
) -> dict[str, Any]:
    return {"stage": "load", "verdict": verdict, "slowed": slowed, "attributed": attributed,
            "covers": True, "half_width": 0.01, **changes}  # fmt: skip


def test_comparisons_are_judged_together() -> None:
    enough = [row()] * 18 + [row(verdict="INCONCLUSIVE", attributed="")] * 2
    result, met = power_turns.judge(enough, 0.05)
    assert met
    assert (result["slower"], result["named"], result["needed"]) == (18, 18, 18)
    assert not power_turns.judge([*enough[2:], *[row(attributed="")] * 2], 0.05)[1]
    assert not power_turns.judge([*enough, row(attributed="decode")], 0.05)[1]
    assert not power_turns.judge([*enough, row(half_width=0.016)], 0.05)[1]
    assert not power_turns.judge([*enough[:16], *[row(covers=False)] * 4], 0.05)[1]
    assert not power_turns.judge([*enough, row(stage="train")], 0.05)[1]
    assert power_turns.judge([row(verdict="EQUIVALENT", attributed="")] * 20, 0.02)[1]


def test_a_contrast_without_a_pair_covers_nothing() -> None:
    entry = {"stage": "load", "verdict": "NO_VERDICT", "ratio": None, "pairs": 0, "interval": None,
             "note": "", "attribution": None, "confounders": {"differences": []}}  # fmt: skip
    found = power_turns.row_of(entry, "read", 1.05)
    assert not found["covers"]
    assert math.isinf(found["half_width"])
