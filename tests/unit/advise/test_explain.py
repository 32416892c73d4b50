"""Advice says what the numbers of this very case say: like against like, and the right cure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from iobench.advise.explain import advise
from iobench.analysis.case_results import (
    BytesResult,
    CaseResult,
    LimitResult,
    NoStall,
    PrepStall,
    RateResult,
    StageResult,
    WaitResult,
)
from iobench.analysis.cases import describe
from iobench.analysis.evidence import evidence
from iobench.analysis.suite import analyse
from iobench.equations import roofline
from iobench.equations.stats import Interval
from tests.build import report as fixture

#: A case whose loader prepares 300 samples/s for a compute of 1000.
PREP: dict[str, float] = {"read": 9000, "decode": 310, "load": 300, "compute": 1000}
FINE: dict[str, float] = {"read": 9000, "decode": 3100, "load": 3000, "compute": 1000}


def entry(pipeline: str, rates: dict[str, float] | None = None, **changes: Any) -> CaseResult:
    """Return the result of a case that only warm trials were made of."""
    rates = rates or PREP
    names = {"decode": roofline.DECODE, "load": roofline.LOAD, "compute": roofline.COMPUTE}
    bound = rates["load"] < rates["compute"]
    warm = LimitResult(
        roofs={names[k]: v for k, v in rates.items() if k in names},
        regime=roofline.PREP_BOUND if bound else roofline.COMPUTE_BOUND,
        binding=roofline.LOAD if bound else roofline.COMPUTE,
        headroom=rates["load"] / rates["compute"],
    )
    load = RateResult(3, point(rates["load"]), point(1 / rates["load"]), None, "VALID", ())
    made = fixture.case_result(
        case=pipeline, pipeline=pipeline, loader=pipeline.partition(":")[0], workers=1, cores=8,
        stages={"load": StageResult({"warm": load})},
        limits={"cold": LimitResult({}), "warm": warm},
        bytes=BytesResult(1e5, None, None, 1.0, ""),
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def point(value: float) -> Interval:
    return Interval(value, value, value, 0.95, 3, "t")


def texts(*cases: CaseResult, of: int = 0) -> str:
    """Return the advice for one of the cases, its lines joined."""
    suite = dataclasses.replace(analyse(*fixture.suite()), pipelines=cases)
    return "\n".join(a.text for a in advise(suite) if a.case == cases[of].case)


def fast(pipeline: str, **changes: Any) -> CaseResult:
    return entry(pipeline, {**PREP, "decode": 1200, "load": 1100}, **changes)


def test_another_pipeline_is_recommended_among_equal_cases() -> None:
    assert "torch:lmdb prepares 3.7 x as fast here warm" in texts(
        entry("torch:jpeg"), fast("torch:lmdb"), entry("torch:lmdb", case="b", workers=4)
    )


def test_no_pipeline_is_recommended_to_itself() -> None:
    many = fast("torch:jpeg", case="torch:jpeg workers=4", workers=4)
    deep = fast("torch:jpeg", case="torch:jpeg prefetch=9")
    assert "as fast here" not in texts(entry("torch:jpeg"), many, deep)


@pytest.mark.parametrize(
    "change",
    [
        {"runtime": "docker"}, {"order": "stored"}, {"transform": "crop224"}, {"batch": 8},
        {"workers": 4}, {"world_size": 2}, {"sharing": "disjoint"}, {"placement": "staged"},
        {"cpus": 1.0}, {"memory_bytes": 1 << 30},
    ],
)  # fmt: skip
def test_unlike_cases_recommend_nothing(change: dict[str, Any]) -> None:
    assert "as fast here" not in texts(entry("torch:jpeg"), fast("torch:lmdb", **change))


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
    roofs = {roofline.STORAGE: 5000, roofline.LOAD: 900, roofline.COMPUTE: 1000}
    cold = LimitResult(roofs, regime=roofline.FETCH_BOUND, binding=roofline.LOAD_COLD)
    limits = {"cold": cold, "warm": LimitResult({})}
    said = texts(entry("native:jpeg", limits=limits, fixed_threads=True))
    assert "one thread reads and prepares in turn: this loader has one thread" in said
    assert "raise workers" not in said
    assert "raise workers so that" in texts(entry("threads:jpeg", limits=limits))


@pytest.mark.parametrize(("loader", "fixed"), [("native", True), ("torch", False), ("gone", False)])
def test_which_loaders_have_one_thread(loader: str, fixed: bool) -> None:
    plan, _ = fixture.suite()
    case = dataclasses.replace(plan.cases[0], loader=loader)
    found = evidence(dataclasses.replace(plan, trials=(), cases=(case,)), [])
    assert describe(found, case).fixed_threads is fixed


def idle(wait: float, contention: float, **changes: Any) -> str:
    """Return the advice for a compute-bound case with an AU of 0.85."""
    stall = PrepStall(
        **vars(point(wait + contention)), bound_s=0.0, paired=True, standing="EXPLORATORY",
        wait_s=point(wait), contention_s=point(contention),
    )  # fmt: skip
    found = {"au": {"warm": point(0.85)}, "prep_stall_s": stall, "step_wait_s": waits(wait * 64)}
    return texts(entry("torch:jpeg", FINE, **{**found, **changes}))


def waits(warm: float, **others: float) -> dict[str, WaitResult]:
    means = {"warm": warm, **others}
    return {cache: WaitResult(9, mean, mean, mean, mean, mean) for cache, mean in means.items()}


def test_cores_are_blamed_where_steps_are_slower_and_not_where_they_wait() -> None:
    assert "the loader takes cores from the steps" in idle(1e-5, 4e-5)
    for contention in (0.0, -1e-5, 1e-5):
        said = idle(4e-5, contention)
        assert "AU is 0.85: steps wait for their batches; raise prefetch or the batch" in said
        assert "cores" not in said


@pytest.mark.parametrize("change", [{"step_wait_s": {}}, {"prep_stall_s": NoStall(reason="x")}])
def test_nothing_is_blamed_alone_where_the_parts_are_not_known(change: dict[str, Any]) -> None:
    assert "steps wait for their batches, or the loader takes cores" in idle(1e-5, 4e-5, **change)


def test_a_cold_epoch_is_judged_by_its_own_waits() -> None:
    said = idle(
        1e-5, 4e-5,
        au={"cold": point(0.85)},
        step_wait_s=waits(64 * 1e-5, cold=64 * 9e-5),
        limits={"cold": entry("x", FINE).limits["warm"], "warm": LimitResult({})},
    )  # fmt: skip
    assert "steps wait for their batches; raise" in said
