"""Which nodes a suite may use, where ranks came to lie, and what a node's evidence is worth."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from iobench.analysis import disturbance
from iobench.analysis import ranks as rank_figures
from iobench.core.cases import Case
from iobench.core.errors import BackendUnavailable, SpecError
from iobench.core.records import (
    EXPLORATORY,
    INVALID,
    VALID,
    CacheProof,
    IoCounters,
    RankResult,
    Record,
)
from iobench.run import cache_proof, cache_state, nodes, ranks

CASE = Case(launcher="mpirun", world_size=4, nodes=2)


def test_hosts_are_those_named_else_the_batch_jobs_else_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nodes.allocated("h1, h2,", {}) == ["h1", "h2"]
    assert len(nodes.allocated("", {})) == 1
    expander = tmp_path / "scontrol"
    expander.write_text("#!/bin/sh\n[ $3 = 'n[1-2]' ] || exit 1\necho n1\necho n2\n")
    expander.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert nodes.allocated("", {"SLURM_JOB_NODELIST": "n[1-2]"}) == ["n1", "n2"]
    with pytest.raises(BackendUnavailable, match="name the hosts by --hosts"):
        nodes.allocated("", {"SLURM_JOB_NODELIST": "?"})


def test_more_nodes_than_there_are_is_an_error_before_anything_runs() -> None:
    nodes.check([CASE], ["h1", "h2"])
    nodes.check([dataclasses.replace(CASE, nodes=1)], ["h1"])
    with pytest.raises(SpecError, match=r"wants 2 nodes, and here are 1 \(h1\): name them"):
        nodes.check([CASE], ["h1"])


def test_ranks_must_be_spread_evenly() -> None:
    assert ranks.misplaced({0: "a", 1: "b"}, ["a", "b"]) == ""
    assert "put 1 on b, 3 on c, and not 2 on each of a, b" in ranks.misplaced(
        {0: "b", 1: "c", 2: "c", 3: "c"}, ["a", "b"]
    )
    assert ranks.misplaced({0: "a", 1: "a"}, ["a", "b"])


def test_the_worst_node_counts() -> None:
    one, two = (VALID, ()), (EXPLORATORY, ("node b: unknown",))
    three = (INVALID, ("node c: not cold",))
    assert cache_state.worst([one, one]) == one
    assert cache_state.worst([one, two]) == two
    assert cache_state.worst([three, two, three])[1] == ("node c: not cold",) * 2


def test_evidence_of_all_nodes_is_the_worst_residency_and_all_bytes() -> None:
    proof = CacheProof("warm", "cachestat", 1.0, 1.0, 10, 20, 5, "read_bytes", held=True)
    other = dataclasses.replace(proof, resident_before=0.5, held=False, unheld="limit")
    assert cache_proof.whole("warm", [proof]) is proof
    both = cache_proof.whole("warm", [proof, other])
    assert (both.resident_before, both.resident_after) == (0.5, 1.0)
    assert (both.bytes_needed, both.bytes_read, both.bytes_storage) == (20, 40, 10)
    assert (both.held, both.unheld, both.method) == (False, "limit", "cachestat")
    assert cache_proof.whole("cold", [proof, other]).resident_before == 1.0
    unknown = dataclasses.replace(proof, bytes_storage=None)
    assert cache_proof.whole("cold", [proof, unknown]).bytes_storage is None
    assert both.others_bytes is None
    one, two = (
        dataclasses.replace(
            proof, others_bytes=n, bytes_resident=20, messages_bytes=3, caches={"io-cache": n}
        )
        for n in (1, 2)
    )
    both = cache_proof.whole("cold", [one, two])
    assert (both.others_bytes, both.bytes_resident, both.messages_bytes) == (3, 40, 6)
    assert both.caches == {"io-cache": 3}
    assert cache_proof.added([{"read": 1}, {"read": 2, "write": 3}]) == {"read": 3, "write": 3}


def rank_on(host: str, boot_id: str, busy_s: float, rank: int = 0) -> RankResult:
    io = IoCounters(wall_s=2.0, cpu_user_s=1.0, machine_busy_s=busy_s)
    return RankResult(rank, 2, host, 1, io=io, fingerprint={"boot_id": boot_id})


def test_cpu_is_added_up_machine_by_machine() -> None:
    """One node's idleness hides no rival of another."""
    apart = [rank_on("a", "1", 1.0), rank_on("b", "2", 1.5, 1)]
    assert rank_figures.together(apart).machine_busy_s == 2.5
    assert dict(rank_figures.by_machine(apart))["b"].foreign_cpu_s == 0.5
    same = [rank_on("a", "1", 2.0), rank_on("b", "1", 2.0, 1)]
    ((names, io),) = rank_figures.by_machine(same)
    assert (names, io.machine_busy_s, io.foreign_cpu_s) == ("a, b", 2.0, 0.0)


def test_the_node_with_rivals_is_named() -> None:
    from iobench.core.cases import Trial

    record = Record(
        Trial("t", CASE, "load", "warm"), 1, VALID, (), "now", 1.0, CacheProof(),
        ranks=(rank_on("a", "1", 1.0), rank_on("b", "2", 1.5, 1)),
    )  # fmt: skip
    assert disturbance.disturbed(record) == "rivals on b used 0.50 s of CPU in 2.00 s"
