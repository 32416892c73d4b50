"""A stage is named only when its own probe moved, and moved more than every other stage's."""

from __future__ import annotations

import dataclasses
import random
import re
from typing import Any

import pytest

from iobench.analysis.attribution import attribute
from iobench.analysis.evidence import evidence
from iobench.analysis.ranks import step_parts
from iobench.analysis.suite import analyse
from iobench.core.records import EXPLORATORY, VALID, IoCounters, RankResult, Startup, Steps
from iobench.report import contrast_words
from tests.build import pairs as fixture

BARE, DOCKER = fixture.cases("bare", "docker")
STAGES = ("read", "decode", "transform")
BASE = {"read_s": 1e-3, "decode_s": 1e-3, "transform_s": 1e-3}


def found(
    arm: dict[str, float], *, noise: float = 0.002, load: float = 1.1, status: str = VALID,
    pairs: int = 8, seed: int = 1, **changes: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return the contrast's entry where the arm's probe differs by ``arm`` (seconds)."""
    contrast = fixture.contrast(DOCKER, BARE, **changes)
    plan = fixture.plan([BARE, DOCKER], [contrast], probes=bool(contrast.probes))
    rng = random.Random(seed)
    records = []
    for trial in plan.trials:
        mine = trial.arm == DOCKER.label
        seconds = 1e-3 * (load if mine else 1.0) * rng.gauss(1, 0.002)
        if trial.stage == "probe":
            if trial.block > pairs:
                continue
            parts = {
                part: (value + (arm.get(part, 0.0) if mine else 0.0)) * rng.gauss(1, noise)
                for part, value in BASE.items()
            }
            records.append(fixture.record(trial, probe=parts, status=status))
        else:
            records.append(fixture.record(trial, seconds))
    return analyse(plan, records).contrasts[0]


@pytest.mark.parametrize("part", sorted(BASE))
def test_the_stage_that_moved_is_named(part: str) -> None:
    entry = found({part: 1e-4})
    stage = part.removesuffix("_s")
    assert entry.outcome.verdict == "SLOWER"
    assert entry.attribution.stage == stage
    assert entry.attribution.parts[stage].value == pytest.approx(1e-4, rel=0.1)
    assert entry.attribution.parts[stage].level == pytest.approx(1 - 0.05 / 3)
    shown = f"{1e3 * entry.attribution.parts[stage].value:+.3g} ms a sample"
    assert f"attributed to {stage} ({shown}" in contrast_words.sentence(entry)


def test_a_faster_arm_is_attributed_in_its_own_direction() -> None:
    entry = found({"decode_s": -1e-4}, load=0.9)
    assert (entry.outcome.verdict, entry.attribution.stage) == ("FASTER", "decode")


def test_a_stage_that_moved_the_other_way_is_not_named() -> None:
    entry = found({"decode_s": -1e-4})
    assert entry.attribution.stage == ""
    assert "no stage alone is slower" in entry.attribution.reason


@pytest.mark.parametrize(
    ("stage", "runs"), [("read", ["read"]), ("decode", ["read", "decode"]), ("train", list(STAGES))]
)
def test_only_a_stage_that_the_compared_rung_runs_is_named(stage: str, runs: list[str]) -> None:
    for moved in STAGES:
        entry = found({f"{moved}_s": 1e-4}, stage=stage)
        assert entry.outcome.verdict == "SLOWER"
        assert entry.attribution.stage == (moved if moved in runs else "")
        assert list(entry.attribution.parts) == runs


def test_a_stage_that_is_not_run_need_not_be_told_apart() -> None:
    entry = found({"read_s": 1e-4, "decode_s": 1e-4}, stage="read")
    assert entry.attribution.stage == "read"


def test_two_stages_that_moved_alike_are_not_told_apart() -> None:
    entry = found({"read_s": 1e-4, "decode_s": 1e-4})
    assert entry.attribution.stage == ""
    assert "not told apart" in contrast_words.sentence(entry)


def test_noise_larger_than_the_difference_is_not_attributed() -> None:
    named = [found({"read_s": 1e-5}, noise=0.2, seed=s).attribution.stage for s in range(20)]
    assert named.count("") >= 18


@pytest.mark.parametrize("load", [1.0, 0.999])
def test_an_equivalent_contrast_is_not_attributed(load: float) -> None:
    entry = found({"read_s": 1e-4}, load=load)
    assert (entry.outcome.verdict, entry.attribution) == ("EQUIVALENT", None)
    assert "attributed" not in contrast_words.sentence(entry)


def test_too_few_or_unproven_probes_name_nothing() -> None:
    few = found({"read_s": 1e-4}, pairs=6).attribution
    assert (few.stage, few.pairs) == ("", 6)
    assert "6 pairs of probes, 7 are needed" in few.reason
    unproven = found({"read_s": 1e-4}, status=EXPLORATORY).attribution
    assert unproven.stage == ""
    assert unproven.reason == "probes are EXPLORATORY: by the test"


def test_none_is_asked_for() -> None:
    assert found({"read_s": 1e-4}, probes=0).attribution is None


def test_a_loader_without_a_probe_says_so() -> None:
    bare, docker = fixture.cases("bare", "docker", loader="dali")
    contrast = fixture.contrast(docker, bare)
    plan = fixture.plan([bare, docker], [contrast])
    entry = attribute(evidence(plan, []), contrast, "SLOWER")
    assert entry is not None
    assert entry.reason == "loader 'dali' has no serial probe"


def test_probes_do_not_enter_the_ladders_shares() -> None:
    contrast = fixture.contrast(DOCKER, BARE)
    plan = fixture.plan([BARE, DOCKER], [contrast], probes=True)
    records = [fixture.record(t, probe=BASE) for t in plan.trials if t.stage == "probe"]
    assert analyse(plan, records).pipelines[0].probe is None


def rank_of(rank: int, *, wait: float, compute: float, peers: float, exchange: float) -> RankResult:
    """Return a rank whose steps, of four samples, all have these parts; the first is a warm-up."""
    whole = wait + compute + peers + exchange
    begins = [i * whole for i in range(6)]
    ready = [at + wait for at in begins]
    done = [at + whole for at in begins]
    steps = Steps(
        begins, ready, done, [4] * 6, [4] * 6, 1, peers_s=[peers] * 6, exchange_s=[exchange] * 6
    )
    return RankResult(
        rank=rank, world_size=2, host="node17", pid=1, steps=steps, startup=Startup(),
        io=IoCounters(wall_s=1.0), ids_digest="a", order_digest="b",
        fingerprint=fixture.FINGERPRINT,
    )  # fmt: skip


def test_the_parts_of_a_step_are_those_of_the_rank_that_is_waited_for() -> None:
    late = rank_of(1, wait=0.05, compute=0.02, peers=0.0, exchange=0.01)
    early = rank_of(0, wait=0.0, compute=0.02, peers=0.05, exchange=0.01)
    expected = {"loading": 0.05 / 8, "compute": 0.02 / 8, "communication": 0.01 / 8}
    assert step_parts([early, late]) == pytest.approx(expected)
    alone = dataclasses.replace(late, steps=fixture.steps(1e-3))
    assert step_parts([early, alone]) == step_parts([]) == {}


PARTS = {"wait": 0.004, "compute": 0.02, "exchange": 0.01}


@pytest.mark.parametrize(
    ("moved", "probes", "stage"),
    [
        ("exchange", 0, "communication"),
        ("exchange", 8, "communication"),
        ("compute", 0, "compute"),
        ("wait", 0, "loading"),
        ("wait", 8, "read"),
    ],
)
def test_training_on_several_ranks_is_attributed_by_its_steps(
    moved: str, probes: int, stage: str
) -> None:
    bare, docker = (
        dataclasses.replace(case, world_size=2, launcher="torchrun") for case in (BARE, DOCKER)
    )
    contrast = fixture.contrast(docker, bare, stage="train", probes=probes)
    plan = fixture.plan([bare, docker], [contrast], probes=bool(probes))
    rng = random.Random(2)
    records = []
    for trial in plan.trials:
        mine = trial.arm == docker.label
        if trial.stage == "probe":
            read_s = (2e-3 if mine else 1e-3) * rng.gauss(1, 0.002)
            made = fixture.record(trial, probe={**BASE, "read_s": read_s})
        else:
            own = {k: v * rng.gauss(1, 0.002) for k, v in PARTS.items()}
            own[moved] += 0.004 * mine
            both = (rank_of(0, peers=0.0, **own), rank_of(1, peers=0.0, **own))
            made = dataclasses.replace(fixture.record(trial), ranks=both)
        records.append(made)
    entry = analyse(plan, records).contrasts[0]
    assert entry.outcome.verdict == "SLOWER"
    assert entry.attribution is not None
    assert entry.attribution.stage == stage, entry.attribution
    if stage != "read":
        assert entry.attribution.parts[stage].value == pytest.approx(0.004 / 8, rel=0.1)
        said = rf"attributed to {stage} \(\+0\.(49|50)\d ms a sample in the compared steps\)"
        assert re.search(said, contrast_words.sentence(entry))
