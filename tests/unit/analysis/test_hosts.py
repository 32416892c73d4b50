"""Records of several hosts: figures are of one of them, blocks never span two."""

from __future__ import annotations

import dataclasses
from typing import Any, List

import pytest

from iobench.analysis import notes
from iobench.analysis.compare import compare_suites
from iobench.analysis.evidence import evidence
from iobench.analysis.pairs import complete_pairs
from iobench.analysis.suite import analyse
from iobench.core.cases import Plan
from iobench.core.records import Record
from iobench.report import csv, publish
from tests.build import pairs
from tests.build import report as fixture

HOME, AWAY = "node17", "node18"


@pytest.fixture(scope="module")
def suite() -> tuple[Plan, List[Record]]:
    return fixture.suite()


def slowed(record: Record, by: float) -> Record:
    """Return a record whose every time is longer, as of a slower host."""
    ranks = []
    for rank in record.ranks:
        steps = {n: [by * t for t in getattr(rank.steps, n)] for n in ("request_s", "ready_s",
                                                                        "done_s")}  # fmt: skip
        ranks.append(dataclasses.replace(rank, steps=dataclasses.replace(rank.steps, **steps)))
    return dataclasses.replace(record, ranks=tuple(ranks))


def moved(records: List[Record], ids: set[str]) -> List[Record]:
    """Return the records with these of another host, which is three times slower."""
    return [
        dataclasses.replace(slowed(r, 3.0), host=AWAY, job="7") if r.trial.id in ids else r
        for r in records
    ]


def rates(document: dict[str, Any]) -> dict[Any, Any]:
    return {
        (p["case"], stage, cache): entry["samples_per_s"]["value"]
        for p in document["pipelines"]
        for stage, by_cache in p["stages"].items()
        for cache, entry in by_cache.items()
        if "samples_per_s" in entry
    }


def test_a_suite_of_one_host_says_nothing_of_hosts(suite: tuple[Plan, List[Record]]) -> None:
    document = publish.document(analyse(*suite))
    (host,) = document["hosts"]
    assert host == {"host": HOME, "jobs": [], "trials": host["trials"], "figures": True}
    assert not any("hosts" in note for note in document["notes"])


def test_figures_are_of_one_host_and_it_is_said(suite: tuple[Plan, List[Record]]) -> None:
    """7 of one node, the others of another: what once became one table."""
    plan, records = suite
    ladder = [t.id for t in plan.trials if not t.contrast and t.stage == "load"][:7]
    left = [r for r in records if r.trial.id not in ladder]
    alone = publish.document(analyse(plan, left))
    both = publish.document(analyse(plan, moved(records, {*ladder})))
    assert rates(both) == rates(alone)
    assert both["fastest"] == alone["fastest"]
    found = {h["host"]: (h["jobs"], h["figures"]) for h in both["hosts"]}
    assert found == {HOME: ([], True), AWAY: (["7"], False)}
    (note,) = (n for n in both["notes"] if "hosts" in n)
    assert f"{AWAY} (7 trials, job 7)" in note
    assert f"are {HOME}'s alone: 7 trials of others are not in them, 7 of the ladder's" in note


def test_a_rung_that_only_the_other_host_has_is_missing_with_the_reason(
    suite: tuple[Plan, List[Record]],
) -> None:
    plan, records = suite
    label = plan.cases[0].label
    rung = {
        t.id
        for t in plan.trials
        if not t.contrast and (t.case.label, t.stage, t.cache) == (label, "read", "cold")
    }
    found = analyse(plan, moved(records, rung))
    (line,) = (line for line in found.missing if f"{label} read cold" in line)
    assert f"has run on {AWAY} alone, and the figures are {HOME}'s" in line
    assert f"`iobench run --resume` on {HOME}" in line


@pytest.mark.parametrize("boot", ["one", "another"])
def test_nodes_that_are_one_machine_are_named(suite: tuple[Plan, List[Record]], boot: str) -> None:
    plan, records = suite
    (rank,) = records[0].ranks
    ranks = tuple(
        dataclasses.replace(rank, rank=i, host=host, fingerprint={"boot_id": boot_id})
        for i, (host, boot_id) in enumerate((("h1", "one"), ("h2", boot)))
    )
    for nodes in (1, 2):  # on one they are names of containers
        case = dataclasses.replace(records[0].trial.case, nodes=nodes)
        trial = dataclasses.replace(records[0].trial, case=case)
        spread = [dataclasses.replace(records[0], trial=trial, ranks=ranks), *records[1:]]
        told = notes.notes(evidence(plan, spread))
        named = [note for note in told if note.startswith("nodes h1, h2 are one machine")]
        assert len(named) == (boot == "one" and nodes == 2)


def test_no_pair_is_of_two_hosts(suite: tuple[Plan, List[Record]]) -> None:
    plan, records = suite
    contrast = plan.contrasts[0]
    mine = [t for t in plan.trials if t.contrast == contrast.id and not t.repeat_of]
    torn = {t.id for t in mine if t.block == 2 and t.arm == contrast.arm}
    whole = {t.id for t in mine if t.block == 4}
    found = evidence(plan, moved(records, torn | whole))
    blocks = [p.block for p in complete_pairs(found, contrast) if not p.repeat_of]
    assert 4 in blocks, "a block of the other host counts"
    assert 2 not in blocks
    everywhere = [p.block for p in complete_pairs(evidence(plan, records), contrast)]
    assert {*everywhere} - {*blocks} >= {2}


def test_rows_name_the_host_and_the_job_and_pool_nothing(suite: tuple[Plan, List[Record]]) -> None:
    plan, records = suite
    train = {t.id for t in plan.trials if t.stage == "train"}
    frame = csv.trials_frame(plan, moved(records, {sorted(train)[0]}))
    rows = frame[frame.stage == "train"]
    away = rows[rows.host == AWAY]
    assert list(away.trial) == [sorted(train)[0]]
    assert list(away.job) == ["7"]
    assert away.contention_s.isna().all(), "the compute rung is of the other host"
    assert rows[rows.host == HOME].contention_s.notna().any()


def test_a_comparison_says_whose_figures_it_compares(suite: tuple[Plan, List[Record]]) -> None:
    plan, records = suite
    other = [dataclasses.replace(r, host=AWAY) for r in records]
    found = compare_suites((plan, records), (plan, other))
    assert (found.a.host, found.b.host) == (HOME, AWAY)
    assert {row.ratio.value for row in found.rows} == {1.0}


def test_a_rank_s_name_inside_a_container_is_no_host() -> None:
    arm, base = pairs.cases("podman", "bare")
    plan = pairs.plan([arm, base], [pairs.contrast(arm, base)])
    records = [pairs.record(t) for t in plan.trials]
    inside = [
        dataclasses.replace(r, ranks=(dataclasses.replace(r.ranks[0], host="3f2a"),))
        if r.trial.case.runtime == "podman"
        else r
        for r in records
    ]
    result = analyse(plan, inside)
    assert [h.host for h in result.hosts] == [HOME]
    assert result.contrasts[0].pairs == 10


def test_a_driver_that_came_meanwhile_is_named(suite: tuple[Plan, List[Record]]) -> None:
    plan, records = suite
    contrast = plan.contrasts[0]
    beside = [
        dataclasses.replace(r, notes={**r.notes, "rivals": ["`iobench run` of user eve, pid 3"]})
        if r.trial.contrast == contrast.id and r.trial.arm == contrast.arm
        else r
        for r in records
    ]
    found = analyse(plan, beside)
    count = sum("rivals" in r.notes for r in beside)
    assert f"{count} trials ran beside another iobench on their node: `iobench run` of user eve, " \
        "pid 3" in found.notes  # fmt: skip
    result = next(c for c in found.contrasts if c.id == contrast.id)
    (line,) = result.confounders.differences
    assert line.startswith("another iobench on the node: in ")
    assert line.endswith(" against 0 trials")
