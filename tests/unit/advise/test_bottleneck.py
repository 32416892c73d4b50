"""Advice says what the numbers of this very case say: like against like, and the right cure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from iobench import figures, pipelines, roofline
from iobench.advice import advise
from tests import report_fixture as fixture

#: A case whose loader prepares 300 samples/s for a compute of 1000.
PREP: dict[str, float] = {"read": 9000, "decode": 310, "load": 300, "compute": 1000}
FINE: dict[str, float] = {"read": 9000, "decode": 3100, "load": 3000, "compute": 1000}


def entry(pipeline: str, rates: dict[str, float] | None = None, **changes: Any) -> dict[str, Any]:
    """Return what the analysis tells of a case that only warm trials were made of."""
    rates = rates or PREP
    names = {"decode": roofline.DECODE, "load": roofline.LOAD, "compute": roofline.COMPUTE}
    roofs = {names[k]: v for k, v in rates.items() if k in names}
    bound = rates["load"] < rates["compute"]
    warm = {
        "roofs": roofs,
        "regime": roofline.PREP_BOUND if bound else roofline.COMPUTE_BOUND,
        "binding": roofline.LOAD if bound else roofline.COMPUTE,
        "headroom": rates["load"] / rates["compute"],
    }
    return {
        "case": pipeline, "pipeline": pipeline, "loader": pipeline.partition(":")[0],
        "runtime": "bare", "order": "shuffled", "transform": "rrc224", "batch": 64, "workers": 1,
        "world_size": 1, "sharing": "stride", "placement": "bind", "cpus": 0.0, "memory_bytes": 0,
        "fixed_threads": False, "cores": 8, "au": {}, "prep_stall_s": {}, "step_wait_s": {},
        "stages": {"load": {"warm": {"samples_per_s": {"value": rates["load"]}}}},
        "limits": {"cold": {"regime": None, "roofs": {}}, "warm": warm},
        "bytes": {"needed_per_sample": 1e5, "read_amplification": 1.0},
        **changes,
    }  # fmt: skip


def texts(*cases: dict[str, Any], of: int = 0) -> str:
    """Return the advice for one of the cases, its lines joined."""
    lines = advise({"pipelines": list(cases)})
    return "\n".join(a["text"] for a in lines if a["case"] == cases[of]["case"])


def fast(pipeline: str, **changes: Any) -> dict[str, Any]:
    return entry(pipeline, {**PREP, "load": 1100}, **changes)


def test_another_pipeline_is_recommended_among_equal_cases() -> None:
    assert "torch:lmdb prepares 3.7 x faster here warm" in texts(
        entry("torch:jpeg"), fast("torch:lmdb"), entry("torch:lmdb", case="b", workers=4)
    )


def test_no_pipeline_is_recommended_to_itself() -> None:
    many = fast("torch:jpeg", case="torch:jpeg workers=4", workers=4)
    deep = fast("torch:jpeg", case="torch:jpeg prefetch=9")
    assert "faster here" not in texts(entry("torch:jpeg"), many, deep)


@pytest.mark.parametrize(
    "change",
    [
        {"runtime": "docker"}, {"order": "stored"}, {"transform": "crop224"}, {"batch": 8},
        {"workers": 4}, {"world_size": 2}, {"sharing": "disjoint"}, {"placement": "staged"},
        {"cpus": 1.0}, {"memory_bytes": 1 << 30},
    ],
)  # fmt: skip
def test_unlike_cases_recommend_nothing(change: dict[str, Any]) -> None:
    assert "faster here" not in texts(entry("torch:jpeg"), fast("torch:lmdb", **change))


def test_the_fastest_of_several_equal_pipelines_counts() -> None:
    quick, slow = fast("torch:lmdb", case="a"), entry("torch:lmdb", case="b")
    for others in ([quick, slow], [slow, quick]):
        assert "torch:lmdb prepares 3.7 x" in texts(entry("torch:jpeg"), *others)


@pytest.mark.parametrize("cores", [1, 8])
def test_a_loader_of_one_thread_gets_no_more_workers(cores: int) -> None:
    said = texts(entry("native:jpeg", fixed_threads=True, cores=cores))
    assert "one thread prepares 300 samples/s, the compute takes 1,000" in said
    assert "use another loader, or store what needs less preparing" in said
    assert "workers" not in said
    assert "cores" not in said
    assert "raise workers to about 4" in texts(entry("threads:jpeg"))


def test_a_loader_of_one_thread_that_reads_in_turn_gets_no_more_workers() -> None:
    cold = {
        "roofs": {roofline.STORAGE: 5000, roofline.LOAD: 900, roofline.COMPUTE: 1000},
        "regime": roofline.FETCH_BOUND, "binding": roofline.LOAD_COLD, "headroom": None,
    }  # fmt: skip
    limits = {"cold": cold, "warm": {"regime": None, "roofs": {}}}
    said = texts(entry("native:jpeg", limits=limits, fixed_threads=True))
    assert "one thread reads and prepares in turn; this loader has one thread" in said
    assert "raise workers" not in said
    assert "raise workers so that" in texts(entry("threads:jpeg", limits=limits))


@pytest.mark.parametrize(("loader", "fixed"), [("native", True), ("torch", False), ("gone", False)])
def test_which_loaders_have_one_thread(loader: str, fixed: bool) -> None:
    plan, _ = fixture.suite()
    case = dataclasses.replace(plan.cases[0], loader=loader)
    found = figures.evidence(dataclasses.replace(plan, trials=(), cases=(case,)), [])
    assert pipelines.describe(found, case)["fixed_threads"] is fixed


def idle(wait: float, contention: float, **changes: Any) -> str:
    """Return the advice for a compute-bound case with an AU of 0.85."""
    parts = {"wait_s": {"value": wait}, "contention_s": {"value": contention}}
    waits = {"warm": {"mean": wait * 64}}
    return texts(
        entry("torch:jpeg", FINE, **{"au": {"warm": {"value": 0.85}}, "prep_stall_s": parts,
                                     "step_wait_s": waits, **changes})
    )  # fmt: skip


def test_cores_are_blamed_where_steps_are_slower_and_not_where_they_wait() -> None:
    assert "the loader takes cores from the steps" in idle(1e-5, 4e-5)
    for contention in (0.0, -1e-5, 1e-5):
        said = idle(4e-5, contention)
        assert "AU is 0.85: steps wait for their batches; raise prefetch or the batch" in said
        assert "cores" not in said


@pytest.mark.parametrize("change", [{"step_wait_s": {}}, {"prep_stall_s": {"reason": "x"}}])
def test_nothing_is_blamed_alone_where_the_parts_are_not_known(change: dict[str, Any]) -> None:
    assert "steps wait for their batches, or the loader takes cores" in idle(1e-5, 4e-5, **change)


def test_a_cold_epoch_is_judged_by_its_own_waits() -> None:
    said = idle(
        1e-5, 4e-5,
        au={"cold": {"value": 0.85}},
        step_wait_s={"cold": {"mean": 64 * 9e-5}, "warm": {"mean": 64 * 1e-5}},
        limits={"cold": entry("x", FINE)["limits"]["warm"], "warm": {"regime": None, "roofs": {}}},
    )  # fmt: skip
    assert "steps wait for their batches; raise" in said
