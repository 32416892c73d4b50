"""What a verdict speaks for: the allocation that its pairs ran in, or several of them."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Callable, Sequence

import pytest

from iobench.analysis.evidence import evidence
from iobench.analysis.pairs import complete_pairs
from iobench.analysis.results import SuiteResult, to_json
from iobench.analysis.suite import analyse
from iobench.core.cases import Plan, Trial
from iobench.core.records import CacheProof, NodeRecord, Record
from iobench.report import html, terminal
from iobench.report.screen import Screen
from tests.build import pairs

ARM, BASE = pairs.cases("apptainer", "bare")
PLAN = pairs.plan([ARM, BASE], [pairs.contrast(ARM, BASE)])
Place = tuple[str, Sequence[str]]


def records(place: Callable[[Trial], Place], slow: Callable[[Trial], float]) -> list[Record]:
    """Return a record a trial, of the job and on the nodes that ``place`` says."""
    found = []
    for trial in PLAN.trials:
        job, nodes = place(trial)
        rows = tuple(NodeRecord(n, (i,), CacheProof()) for i, n in enumerate(nodes))
        made = pairs.record(trial, 1e-3 * (slow(trial) if trial.arm == ARM.label else 1.0))
        found.append(dataclasses.replace(made, job=job, nodes=rows, host="node17"))
    return found


def ran(place: Callable[[Trial], Place]) -> tuple[Plan, list[Record]]:
    return PLAN, records(place, lambda trial: 1.0)


def texts(plan: Plan, found: list[Record]) -> tuple[SuiteResult, list[str]]:
    """Return the analysis, and what the terminal and the report say."""
    suite, out = analyse(plan, found), io.StringIO()
    terminal.render(suite, Screen(file=out, width=400, force_terminal=False))
    return suite, [out.getvalue(), html.render(plan, found, suite)]


def test_on_one_host_outside_of_a_job_nothing_is_said() -> None:
    suite, said = texts(*ran(lambda trial: ("", ())))
    (contrast,) = suite.contrasts
    (only,) = contrast.allocations
    assert (only.job, [*only.nodes], only.pairs) == ("", ["node17"], contrast.pairs)
    assert not any("allocation" in text for text in said)


@pytest.mark.parametrize(
    ("job", "nodes", "words"),
    [
        ("7", ("h1", "h2"), "for job 7 on nodes h1, h2; a claim about the machine needs several"),
        ("7", (), "for job 7 on node node17; a claim about the machine needs several allocations"),
        ("", ("h1", "h2"), "for nodes h1, h2; a claim about the machine needs several allocations"),
    ],
)
def test_a_verdict_speaks_for_its_allocation(job: str, nodes: Sequence[str], words: str) -> None:
    suite, said = texts(*ran(lambda trial: (job, nodes)))
    for text in said:
        assert words in text
    (contrast,) = to_json(suite)["contrasts"]
    assert contrast["unit"] == "block"
    (only,) = json.loads(json.dumps(contrast["allocations"]))
    assert only["job"] == job
    assert only["nodes"] == list(nodes or ["node17"])
    assert only["pairs"] == contrast["pairs"] == 10


def test_several_allocations_are_counted_and_their_ratios_stand_side_by_side() -> None:
    """A suite that was resumed in another job: its blocks are pooled, and that is said."""
    second = [t.block for t in PLAN.trials if t.block > 6]

    def place(trial: Trial) -> Place:
        return ("9", ("h3", "h4")) if trial.block in second else ("7", ("h1", "h2"))

    found = records(place, lambda trial: 1.5 if trial.block in second else 1.2)
    suite, said = texts(PLAN, found)
    for text in said:
        assert "for 2 allocations (job 7 on nodes h1, h2: 6 pairs, ratio 1.20; " in text
        assert "job 9 on nodes h3, h4: 4 pairs, ratio 1.50)" in text
        assert "the unit of the interval is the block, not the allocation" in text
        assert "needs several allocations" not in text
    (contrast,) = suite.contrasts
    assert [a.ratio for a in contrast.allocations] == pytest.approx([1.2, 1.5])


def test_a_job_that_was_requeued_onto_other_nodes_is_another_allocation() -> None:
    suite, _ = texts(*ran(lambda t: ("7", ("h1", "h2") if t.block < 4 else ("h1", "h3"))))
    (contrast,) = suite.contrasts
    assert [[*a.nodes] for a in contrast.allocations] == [["h1", "h2"], ["h1", "h3"]]


def test_of_many_allocations_a_few_are_listed() -> None:
    _, said = texts(*ran(lambda trial: (str(trial.block), ())))
    for text in said:
        assert "for 10 allocations (job " in text
        assert "6 more in analysis.json" in text


def test_no_pair_is_of_two_allocations() -> None:
    """The arms of a block that two jobs share, or two sets of nodes, are not compared."""

    def torn(trial: Trial) -> Place:
        if trial.arm == ARM.label and trial.block == 2:
            return "9", ("h1", "h2")
        if trial.arm == ARM.label and trial.block == 3:
            return "7", ("h1", "h3")
        return "7", ("h1",) if trial.arm == BASE.label and trial.block == 4 else ("h1", "h2")

    plan, found = ran(torn)
    kept = {p.block for p in complete_pairs(evidence(plan, found), plan.contrasts[0])}
    assert {b.block for b in plan.trials} - kept == {2, 3}, "fewer of its nodes are no others"
