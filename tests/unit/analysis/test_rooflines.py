"""The trainer's roofline and trajectories: from records to figures, report and words."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Sequence, Tuple

import pytest

from iobench.analysis.results import to_json
from iobench.analysis.suite import analyse
from iobench.analysis.trajectories import trajectories
from iobench.core.cases import Case, Plan, Trial
from iobench.core.records import VALID, Record
from iobench.report import compute_plot, html, trainer_words
from tests.build import report as fixture

#: 64 samples of 4 GFLOP each; 2 threads of 60 GFLOP/s and 12 GB/s (the best of two trials).
ROOF: Dict[str, Any] = {
    "flop_per_step": 256e9, "step_samples": 64, "threads": 2, "by": "torch 2.13.0", "rows": 2048,
    "triad_bytes": 3 << 28, "cache_bytes": 1 << 25, "peak_flops": 60e9, "memory_bytes_per_s": 12e9,
}  # fmt: skip


def measured(*roofs: Dict[str, Any]) -> Tuple[Plan, List[Record]]:
    """Return the fixture's suite with the rung ``roof`` of the case that only trains."""
    plan, records = fixture.suite()
    like = next(r for r in records if r.trial.stage == "compute" and r.status == VALID)
    trials, more = [], []
    for block, roof in enumerate(roofs, 1):
        trial = Trial(f"99{block:02d}-ladder-roof", fixture.NET, "roof", "-", block=block)
        rank = dataclasses.replace(like.ranks[0], notes={"roof": roof})
        trials.append(trial)
        more.append(dataclasses.replace(like, trial=trial, ranks=(rank,)))
    return dataclasses.replace(plan, trials=(*plan.trials, *trials)), [*records, *more]


def test_flop_times_rate_is_held_against_the_best_of_the_roofs() -> None:
    plan, records = measured({**ROOF, "peak_flops": 50e9}, {**ROOF, "memory_bytes_per_s": 8e9})
    suite = analyse(plan, records)
    case = next(c for c in suite.pipelines if c.case == fixture.NET.label)
    roof = case.compute_roof
    assert roof is not None
    assert roof.flop_per_sample == 4e9
    assert (roof.peak_flops, roof.memory_bytes_per_s, roof.ridge) == (60e9, 12e9, 5.0)
    rate = case.rate("compute", "-")
    assert rate is not None
    assert roof.compute_flops == pytest.approx(4e9 * rate.value, rel=1e-3)
    assert roof.least_intensity == pytest.approx((roof.compute_flops or 0) / 12e9)
    assert roof.intensity is None
    assert "not counted" in roof.traffic
    text = trainer_words.compute_roof(case)
    assert "4.00 GFLOP a sample" in text
    assert "60.0 GFLOP/s" in text
    page = html.render(plan, records, suite)
    assert 'id="plot-compute-roof"' in page
    assert "memory traffic was not counted" in page
    assert to_json(roof)["intensity"] is None


def test_a_roof_with_more_threads_is_no_lower_and_one_that_is_passed_is_said() -> None:
    plan, records = measured({**ROOF, "threads": 1}, {**ROOF, "threads": 4, "peak_flops": 1e9})
    last = records[-1].trial
    more = dataclasses.replace(last.case, label="four", trainer_options={"net": "x", "threads": 4})
    records[-1] = dataclasses.replace(records[-1], trial=dataclasses.replace(last, case=more))
    plan = dataclasses.replace(
        plan,
        cases=(*plan.cases, more),
        trials=(*plan.trials[:-1], dataclasses.replace(plan.trials[-1], case=more)),
    )
    roofs = {c.case: c.compute_roof for c in analyse(plan, records).pipelines if c.compute_roof}
    assert [(r.threads, r.peak_flops) for r in roofs.values()] == [(1, 60e9), (4, 60e9)]
    plan, records = measured({**ROOF, "peak_flops": 1e9})
    case = next(c for c in analyse(plan, records).pipelines if c.compute_roof)
    assert "more than the GEMM gave" in trainer_words.compute_roof(case)


def test_without_the_rung_there_is_no_roofline() -> None:
    plan, records = fixture.suite()
    suite = analyse(plan, records)
    assert all(c.compute_roof is None for c in suite.pipelines)
    assert "plot-compute-roof" not in html.render(plan, records, suite)
    assert compute_plot.compute(suite.pipelines) == ""


def results(cases: Sequence[Case], rates: Dict[str, Tuple[float, float]]) -> List[Any]:
    """Return the results of cases of which load and train were measured, warm."""
    plan, records = fixture.suite()
    found = next(c for c in analyse(plan, records).pipelines if c.case == "torch:jpeg")
    made = []
    for case in cases:
        stages = dict(found.stages)
        for stage, rate in zip(("load", "train"), rates[case.label], strict=True):
            rung: Any = found.stages[stage].caches["warm"]
            value = dataclasses.replace(rung.samples_per_s, value=rate)
            warm = {"warm": dataclasses.replace(rung, samples_per_s=value)}
            stages[stage] = dataclasses.replace(found.stages[stage], caches=warm)
        made.append(dataclasses.replace(found, case=case.label, stages=stages))
    return made


def test_the_points_of_one_knob_are_joined_in_its_order() -> None:
    cases = [
        fixture.case("torch:jpeg", label="four", workers=4),
        fixture.case("torch:jpeg", label="one", workers=1),
        fixture.case("torch:jpeg", label="lmdb", format="lmdb", workers=2),
        fixture.case("torch:jpeg", label="small", workers=1, batch=8),
        fixture.case("torch:jpeg", label="again", workers=4, name="again"),
    ]
    rates = {"four": (800.0, 330.0), "one": (200.0, 199.0), "lmdb": (300.0, 300.0),
             "small": (190.0, 150.0), "again": (800.0, 1.0)}  # fmt: skip
    lines = trajectories(cases, results(cases, rates))
    assert [(t.knob, [(p.value, p.case) for p in t.points]) for t in lines] == [
        ("batch", [(8, "small"), (fixture.BATCH, "one")]),
        ("workers", [(1, "one"), (4, "four")]),
    ]
    workers = lines[1]
    assert [(p.load, p.train) for p in workers.points] == [(200.0, 199.0), (800.0, 330.0)]
    assert workers.job == "emulated, torch:jpeg"
    drawn = compute_plot.pipeline([workers])
    assert "199 samples/s at 1, 330 samples/s at 4" in drawn
    assert compute_plot.knobs([workers]) == ""  # no FLOP were counted


def test_threads_are_those_that_the_trainer_had() -> None:
    cases = [
        fixture.case("torch:jpeg", label="default", trainer_options={"net": "resnet50"}),
        fixture.case("torch:jpeg", label="one", trainer_options={"net": "resnet50", "threads": 1}),
    ]
    plan, records = measured(ROOF)
    suite = analyse(plan, records)
    roof = next(c.compute_roof for c in suite.pipelines if c.compute_roof)
    assert roof is not None
    found = results(cases, {"default": (90.0, 10.0), "one": (90.0, 6.0)})
    found = [
        dataclasses.replace(found[0], compute_roof=roof),
        dataclasses.replace(found[1], compute_roof=dataclasses.replace(roof, threads=1)),
    ]
    (line,) = trajectories(cases, found)
    assert [(p.value, p.flops) for p in line.points] == [(1, 24e9), (2, 40e9)]
    assert line.job == "resnet50, torch:jpeg"
    assert "resnet50" in compute_plot.knobs([line])
