"""What a mount gives joins the limits: its own limit is named in analysis, report and CSV."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Tuple

import pytest

from iobench.advise.explain import advise
from iobench.analysis.case_results import CaseResult
from iobench.analysis.suite import analyse
from iobench.core.cases import Plan, Trial
from iobench.core.records import VALID, Record
from iobench.report import html, storage_words
from iobench.report.csv import trials_frame
from tests.build import report as fixture

LABEL = "torch:jpeg"  # bound by its storage, 262 samples/s of 110 kB by fio
#: bandwidth bytes/s, IOPS, latency -> what binds at two readers
DEVICES = {
    "bandwidth": (262 * 110e3, 20_000.0, 1e-4),
    "IOPS": (500e6, 262.0, 1e-4),
    "latency": (500e6, 20_000.0, 2 / 262),
}


def points(bandwidth: float, iops: float, latency_s: float) -> List[Dict[str, Any]]:
    return [
        {
            "size": size,
            "depth": depth,
            "requests": 1000.0,
            "seconds": 1000.0 / min(bandwidth / size, iops, depth / latency_s),
        }
        for size in (4096, 65536, 1 << 20)
        for depth in (1, 4, 64)
    ]


def measured(binding: str) -> Tuple[Plan, List[Record]]:
    """Return the fixture's suite with the rung of the mount of its jpeg files."""
    plan, records = fixture.suite()
    records = [_replayed(r) if r.ceiling else r for r in records]
    case = next(c for c in plan.cases if c.label == LABEL)
    trial = Trial("9999-ladder-requests", case, "requests", "cold", block=1)
    like = next(r for r in records if r.trial.stage == "ceiling" and r.status == VALID)
    found = {"points": points(*DEVICES[binding]), "io_bytes": 9, "runtime_s": 7.0}
    return (
        dataclasses.replace(plan, trials=(*plan.trials, trial)),
        [*records, dataclasses.replace(like, trial=trial, ceiling=found)],
    )


def _replayed(record: Record) -> Record:
    fio = dict(record.ceiling)
    fio |= {"iops": fio["samples_per_s"], "io_bytes": 110_000 * fio["samples"], "readers": 2}
    return dataclasses.replace(record, ceiling=fio)


def pipeline(plan: Plan, records: List[Record], label: str = LABEL) -> CaseResult:
    return next(c for c in analyse(plan, records).pipelines if c.case == label)


@pytest.mark.parametrize("binding", list(DEVICES))
def test_it_is_named_everywhere(binding: str) -> None:
    plan, records = measured(binding)
    found = pipeline(plan, records)
    assert found.storage is not None
    assert found.storage.binding == found.limits["cold"].storage_roof == binding
    assert f"the mount's {binding}" in (found.limits["cold"].words or "")
    assert found.storage.roofs[binding] == pytest.approx(262, rel=0.05)
    assert found.storage.deeper_samples_per_s > (500 if binding == "latency" else 260)
    assert found.limits["warm"].storage_roof is None

    frame = trials_frame(plan, records)
    cold = frame[(frame["case"] == LABEL) & (frame["cache"] == "cold")]
    assert set(cold["storage_roof"]) == {binding}
    assert frame[frame["cache"] != "cold"]["storage_roof"].isna().all()

    assert f"the mount&#39;s {binding}" in html.render(plan, records, analyse(plan, records))
    advice = [f for f in advise(analyse(plan, records)) if f.case == LABEL and f.cause == "storage"]
    assert [f"the mount's {binding}" in f.symptom for f in advice] == [True]


def test_another_stored_form_is_not_judged_by_it() -> None:
    plan, records = measured("IOPS")
    assert pipeline(plan, records, "torch:lmdb").storage is None
    other = pipeline(plan, records, "dali:jpeg").storage
    assert other is not None  # the same files
    assert other.binding == "IOPS"


def test_a_mount_without_the_rung_has_no_words() -> None:
    plan, records = fixture.suite()
    found = pipeline(plan, records)
    assert found.storage is None
    assert storage_words.storage(found) == ""
    assert found.limits["cold"].storage_roof is None
