"""A job's first minute: what the records of starts become in analysis and report."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from iobench.analysis.results import to_json
from iobench.analysis.suite import analyse
from iobench.core.cases import Plan, Trial
from iobench.core.records import EXPLORATORY, INVALID, NO_STEPS, VALID, CacheProof, Record, Startup
from iobench.report import html, start_plot, terminal
from iobench.report.csv import trials_frame
from iobench.run.cache_state import judge
from tests.build.scaling import DATASET, case_of, rank_of, record_of

RANKS = (1, 2)
#: Seconds of the process until its imports are done, and of these.
PROCESS_S, IMPORTS_S = 3.0, 2.5
LAUNCH_S = {"cold": 4.0, "warm": 0.5}


def suite() -> tuple[Plan, list[Record]]:
    cases = [case_of(n) for n in RANKS]
    trials, records = [], []
    for case in cases:
        for cache in ("cold", "warm"):
            for repeat in (1, 2, 3):
                trial = Trial(f"{len(trials)}", case, "start", cache, block=repeat)
                ranks = [
                    rank_of(
                        case, r, NO_STEPS,
                        startup=Startup(process_s=PROCESS_S + r, imports_s=IMPORTS_S),
                    )
                    for r in range(case.world_size)
                ]  # fmt: skip
                software = {"root": "/x", "files": 3, "bytes": 2e9}
                software["fetched"] = 5e8 if cache == "cold" else 0
                ready_s = LAUNCH_S[cache] + PROCESS_S + case.world_size - 1 + (repeat - 2) / 10
                trials.append(trial)
                records.append(
                    dataclasses.replace(
                        record_of(trial, ranks), ready_s=ready_s, notes={"software": software},
                        runtime={"form": "sif"}, mount={"fstype": "lustre"},
                    )
                )  # fmt: skip
    plan = Plan("s", "now", 1, 60.0, DATASET, tuple(cases), tuple(trials), phase=2)
    return plan, records


def test_parts_of_a_start_add_up() -> None:
    found = analyse(*suite())
    assert [(s.ranks, s.cache) for s in found.starts] == [
        (n, cache) for n in RANKS for cache in ("cold", "warm")
    ]
    for one in found.starts:
        assert one.before_s == pytest.approx(LAUNCH_S[one.cache])
        assert one.imports_s == IMPORTS_S
        assert one.python_s == pytest.approx(PROCESS_S + one.ranks - 1 - IMPORTS_S)
        assert one.before_s + one.python_s + one.imports_s == pytest.approx(one.seconds.value)
        assert one.seconds.limited
        assert (one.form, one.filesystem, one.bytes) == ("sif", "lustre", 2e9)
        assert one.fetched == (5e8 if one.cache == "cold" else 0)
        assert one.standing == EXPLORATORY, "three repeats"
    assert not found.missing
    assert json.loads(json.dumps(to_json(found)))["starts"][0]["seconds"]["value"] == 7.0


def test_what_people_read() -> None:
    plan, records = suite()
    found = analyse(plan, records)
    out = io.StringIO()
    terminal.render(found, Console(file=out, width=100))
    text = " ".join(out.getvalue().split())
    assert "bare sif, 2 ranks cold" in text
    assert "sif: 2,000 MB on lustre" in text
    page = html.render(plan, records, found)
    assert 'id="start-up"' in page
    assert "Start-up: bare sif, 1 rank cold 7.00 s" in page
    assert len(trials_frame(plan, records)) == len(records)
    assert start_plot.starts([]) == ""


@pytest.mark.parametrize(
    ("cache", "before", "status"),
    [("cold", 0.0, VALID), ("cold", 0.05, VALID), ("cold", 0.06, INVALID),
     ("cold", None, EXPLORATORY), ("warm", 1.0, VALID), ("warm", 0.99, INVALID),
     ("warm", None, EXPLORATORY)],
)  # fmt: skip
def test_what_was_resident_before_decides(cache: str, before: float | None, status: str) -> None:
    """Nobody counts what runtime and kernel read for it, and the data does not matter."""
    found, reasons = judge(cache, "start", CacheProof(cache, "cachestat", before))
    assert found == status
    assert bool(reasons) == (status != VALID)
