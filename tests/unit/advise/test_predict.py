"""Predictions from parts that are known: what binds before and after, limits, refusals."""

from __future__ import annotations

import dataclasses
import functools
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from iobench.advise import validated, what_ifs
from iobench.advise.predict import NAMES, Prediction, feeds, not_known, predict
from iobench.analysis.case_results import CaseResult, LimitResult, RateResult, StageResult
from iobench.analysis.results import SuiteResult
from iobench.analysis.suite import analyse
from iobench.core.accelerators import WORKLOADS
from iobench.core.errors import SpecError
from iobench.equations import roofline
from iobench.equations.stats import Interval
from iobench.report import feed_plot
from tests.build import report as fixture
from tests.unit.advise.test_explain import entry


def rated(rate: float, half: float, *, nbytes: float | None = None) -> RateResult:
    found = Interval(rate, rate - half, rate + half, 0.95, 3, "t")
    return RateResult(3, found, found.inverse(), nbytes, "VALID", ())


@functools.cache
def whole() -> SuiteResult:
    return analyse(*fixture.suite())


@functools.cache
def blank() -> CaseResult:
    return entry("torch:jpeg")


def suite(**changes: Any) -> SuiteResult:
    """Return a suite of one case: reads 400, prepares 600, computes 1000 samples/s, cold."""
    roofs = {roofline.STORAGE: 500.0, roofline.READ: 400.0, roofline.LOAD: 600.0,
             roofline.COMPUTE: 1000.0}  # fmt: skip
    cold = LimitResult(roofs, measured_samples_per_s=changes.pop("measured", None))
    stages = {
        "ceiling": StageResult({"cold": rated(500, 10, nbytes=5e7)}),
        "read": StageResult({"cold": rated(400, 20)}),
        "load": StageResult({"warm": rated(600, 30)}),
        "compute": StageResult({"-": rated(1000, 5)}),
    }
    made: dict[str, Any] = {"workers": 2, "limits": {"cold": cold, "warm": LimitResult({})}}
    case: CaseResult = dataclasses.replace(blank(), stages=stages, **(made | changes))
    return dataclasses.replace(whole(), pipelines=[case])


def one(what: str, **changes: Any) -> Prediction:
    (found,) = predict(suite(**changes), [what])
    return found


@pytest.mark.parametrize(
    ("what", "rate", "after"),
    [
        ("workers=4", 500, "storage"),
        ("cached=1", 600, "preparing"),
        ("nodes=2", 250, "storage"),
        ("jobs=2", 250, "storage"),
        ("accelerator=v100", 64 / 0.195, "compute"),
    ],
)
def test_what_binds_after_a_change_gives_the_rate(what: str, rate: float, after: str) -> None:
    found = one(what)
    assert found.before == "storage"
    assert found.after == after
    assert found.rate.value == pytest.approx(rate)
    assert found.rate.low <= found.rate.value <= found.rate.high
    assert found.gain.value == pytest.approx(rate / 400)


def test_what_training_misses_of_a_limit_it_misses_of_that_limit_alone() -> None:
    measured = Interval(380, 370, 390, 0.95, 3, "t")
    assert one("nodes=2", measured=measured).rate.value == pytest.approx(250 * 0.95)
    assert one("cached=1", measured=measured).rate.value == pytest.approx(600)
    assert one("accelerator=v100", measured=measured).gain.value < 1
    assert one("cached=1", measured=measured).error == pytest.approx(400 / 380 - 1)


def test_a_step_loses_the_same_time_beside_another_accelerator() -> None:
    whole_roofs = {roofline.LOAD: 9000.0, roofline.COMPUTE: 1000.0}
    measured = Interval(800, 790, 810, 0.95, 3, "t")
    limits = {"cold": LimitResult(whole_roofs, measured_samples_per_s=measured)}
    made = suite(limits=limits | {"warm": LimitResult({})})
    stages = {**made.pipelines[0].stages, "load": StageResult({"warm": rated(9000, 9)})}
    job = dataclasses.replace(made.pipelines[0], stages=stages)
    (found,) = predict(dataclasses.replace(made, pipelines=[job]), ["accelerator=v100"])
    assert found.before == found.after == "compute"
    assert found.rate.value == pytest.approx(1 / (0.195 / 64 + 1 / 800 - 1 / 1000))


def test_nodes_are_at_worst_all_on_one_share_and_at_best_each_alone() -> None:
    found = one("nodes=4")
    assert found.rate.value == pytest.approx(125)
    assert found.rate.high >= 400


def test_workers_that_the_cores_cannot_feed_change_nothing() -> None:
    seen = dataclasses.replace(blank().seen, load_cpu_s=2 / 600)
    (found,) = predict(suite(seen=seen, cores=2, workers=0), ["cores=4"])
    assert found.after == "storage"
    saturated = suite(seen=seen, cores=2)
    (cached,) = predict(saturated, ["cached=1"])
    assert cached.rate.value == pytest.approx(600)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("wings=2", "NAME one of workers"),
        ("workers", "NAME=VALUE"),
        ("workers=none", "a number from 1"),
        ("accelerator=abacus", "allowed: a100, h100, v100"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_what_can(asked: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        predict(suite(), [asked])
    with pytest.raises(SpecError, match="not in these results"):
        predict(suite(), label="nobody's")


def test_every_usual_what_if_of_a_whole_suite_has_a_rate() -> None:
    found = predict(whole())
    assert {p.what.partition("=")[0] for p in found} >= {*what_ifs.WHAT_IFS} - {"decoded"}
    for p in found:
        assert p.rate.value > 0
        assert p.gain.low <= p.gain.value <= p.gain.high


def test_decoding_on_a_gpu_is_known_from_a_case_that_did_it() -> None:
    made = suite()
    (line,) = not_known(made)
    assert "not known without a GPU run" in line
    assert not_known(made, ["workers=4"]) == []
    assert predict(made, ["gpu-decode=1"]) == []
    base = made.pipelines[0]
    stages = {**base.stages, "load": StageResult({"warm": rated(3000, 30)}),
              "read": StageResult({"cold": rated(2e4, 100)}),
              "ceiling": StageResult({"cold": rated(2e4, 100)})}  # fmt: skip
    roofs = {**base.limits["cold"].roofs, roofline.LOAD: 3000.0, roofline.STORAGE: 2e4,
             roofline.READ: 2e4}  # fmt: skip
    limits = {"cold": LimitResult(roofs), "warm": LimitResult({})}
    there = dataclasses.replace(base, case="dali", pipeline="dali:jpeg", loader="dali",
                                device="mixed", stages=stages, limits=limits)  # fmt: skip
    both = dataclasses.replace(made, pipelines=[base, there])
    (found,) = predict(both, ["gpu-decode=1"], label=base.case)
    assert found.what == "gpu-decode=dali"
    assert found.rate.value == pytest.approx(1000)
    assert found.rate.low < 1 / (1 / 990 + 1 / 2900)  # at worst they take turns
    assert "take turns" in found.note
    assert not_known(both) == []


def test_an_error_that_was_seen_stands_beside_its_kind() -> None:
    assert {*validated.CHECKED} <= {*NAMES}
    assert one("cached=1").validated == "-0.1 to +8.9 % where it was checked"
    assert one("cores=4").validated == "+51.5 % where it was checked (one change, to steps of 4 ms)"
    assert validated.error_of("never-checked") == ""


def test_a_mount_feeds_so_many_accelerators() -> None:
    rows = {(f.what, f.workload, f.accelerator): f for f in feeds(suite())}
    h100 = rows["mount (fio)", "resnet50", "h100"]
    assert h100.demand == pytest.approx(114_660 * 400 / 0.224)
    assert h100.count.value == pytest.approx(5e7 / h100.demand / 0.9)
    assert h100.count.low < h100.count.value < h100.count.high
    loading = rows["torch:jpeg load", "resnet50", "a100"]
    assert loading.count.value == pytest.approx(600 / (400 / 0.435) / 0.9)
    assert len({key[1] for key in rows}) == len(WORKLOADS)
    drawn = feed_plot.feeds([*rows.values()])
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
    assert "mount (fio) cold, resnet50 0.271 h100" in drawn
    assert feed_plot.feeds([]) == ""
