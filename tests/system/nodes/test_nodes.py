"""Real hosts: ranks started by each launcher, each node's page cache set and proven."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

from iobench.host import page_lock
from tests.build import clusters
from tests.build.hosts import Host, Hosts
from tests.build.rows import rows
from tests.capabilities import need

pytestmark = pytest.mark.slow

BOTH = ("cold", "warm")
HOSTS = ("--hosts", "h1,h2")


@pytest.mark.parametrize("launcher", ["mpirun", "hydra"])
def test_mpi_starts_ranks_on_two_hosts(cluster: Hosts, launcher: str) -> None:
    need(launcher)
    words = clusters.command(cluster, BOTH, *HOSTS, launcher=launcher, ranks_per_node=2)
    done = clusters.run(cluster, words)
    assert done.returncode == 0, done.stderr
    clusters.check_all(cluster, BOTH, each=2)


@contextlib.contextmanager
def held(host: Host, file: Path) -> Iterator[None]:
    """Keep a file in a host's memory behind iobench's back."""
    command = host.enter(sys.executable, "-I", "-S", page_lock.__file__)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(str(file).encode() + b"\0\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == b"locked\n"
        yield
        holder.stdin.close()


def test_a_node_that_is_warm_behind_our_back_is_named(cluster: Hosts) -> None:
    made = cluster.folder / "made"
    (file,) = made.glob("lmdb/**/data.mdb")
    words = clusters.command(cluster, ["cold"], *HOSTS, launcher="mpirun")
    with held(cluster.hosts[1], cluster.folder / "set" / file.relative_to(made)):
        done = clusters.run(cluster, words)
    assert done.returncode == 1
    assert "node h2: not cold: 100.00%" in done.stderr
    for record in clusters.records(cluster):
        assert record["status"] == "INVALID"
        assert all(reason.startswith("node h2: not cold") for reason in record["reasons"])
        assert [n["cache"]["resident_before"] for n in record["nodes"]] == [0.0, 1.0]
        assert record["cache"]["resident_before"] == 1.0, "the worst counts"


def test_torchrun_over_two_hosts(cluster: Hosts) -> None:
    words = clusters.command(cluster, ["warm"], *HOSTS, launcher="torchrun", ranks_per_node=2)
    done = clusters.run(cluster, words)
    assert done.returncode == 0, done.stderr
    clusters.check_all(cluster, ["warm"], each=2)


@pytest.mark.parametrize("launcher", rows(["mpirun"], ["torchrun"]))
def test_torch_trains_one_net_on_two_hosts(cluster: Hosts, launcher: str) -> None:
    """Each host is a network of its own: the ranks meet at the address that the driver sees."""
    words = clusters.command(
        cluster, ["warm"], *HOSTS, launcher=launcher, stage="train", trainer="torch",
        transform="cifar32", trainer_options={"net": "resnet44cifar", "threads": 1},
    )  # fmt: skip
    done = clusters.run(cluster, words)
    assert done.returncode == 0, done.stderr
    clusters.check_all(cluster, ["warm"])
    clusters.check_one_net(cluster)


def test_a_rank_that_is_squeezed_onto_one_core_is_found_and_said(cluster: Hosts) -> None:
    words = clusters.command(
        cluster, ["warm"], *HOSTS, launcher="mpirun", launcher_options={"bind_to": "core"}
    )
    done = clusters.run(cluster, words)
    assert done.returncode == 0, done.stderr
    (record,) = clusters.records(cluster)
    assert [len(rank["fingerprint"]["affinity"]) for rank in record["ranks"]] == [1, 1]
    results = cluster.folder / "results/latest"
    (found,) = (
        advice
        for advice in json.loads((results / "analysis.json").read_text())["advice"]
        if advice["cause"] == "binding"
    )
    assert found["text"].startswith("rank 0 on node h1 and its workers (1) are bound to 1 core")
    assert "rank 0 on node h1 and its workers (1)" in (results / "report.html").read_text()
    clusters.check_nothing_left(cluster)


def test_torch_trains_one_net_under_srun(cluster: Hosts, batch: None) -> None:
    words = clusters.command(
        cluster, ["warm"], launcher="srun", stage="train", trainer="torch", transform="cifar32",
        trainer_options={"net": "resnet44cifar", "threads": 1},
    )  # fmt: skip
    clusters.run_in_job(cluster, words, "--ntasks-per-node=1")
    clusters.check_all(cluster, ["warm"])
    clusters.check_one_net(cluster)


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_inside_an_allocation(cluster: Hosts, launcher: str, batch: None) -> None:
    """mpirun, too, starts by srun there: a second step beside that of the agents."""
    words = clusters.command(cluster, BOTH, launcher=launcher)
    clusters.run_in_job(cluster, words, "--ntasks-per-node=1")
    clusters.check_all(cluster, BOTH)


def test_the_ceiling_of_two_nodes_is_of_both_at_once(cluster: Hosts) -> None:
    words = clusters.command(cluster, ["cold"], *HOSTS, launcher="mpirun", stage="ceiling")
    done = clusters.run(cluster, words)
    assert done.returncode == 0, done.stderr
    (record,) = clusters.records(cluster)
    assert (record["status"], record["reasons"]) == ("VALID", [])
    found = record["ceiling"]
    parts = found["nodes"]
    assert [part["node"] for part in parts] == ["h1", "h2"]
    assert [part["readers"] for part in parts] == [1, 1]
    assert sum(part["io_bytes"] for part in parts) == found["io_bytes"]
    assert abs(found["io_bytes"] / found["wanted_bytes"] - 1) < 0.01
    assert found["runtime_s"] == max(part["runtime_s"] for part in parts)
    assert found["bytes_per_s"] == pytest.approx(found["io_bytes"] / found["runtime_s"])
    assert found["note"].count("h1 ") == 1
    for node, part in zip(record["nodes"], parts, strict=True):
        proof = node["cache"]
        assert node["node"] == part["node"]
        assert proof["resident_before"] == 0.0
        assert proof["bytes_needed"] == part["io_bytes"]
        assert proof["bytes_storage"] >= part["io_bytes"], "from this node's own disk"
    analysis = json.loads((cluster.folder / "results/latest/analysis.json").read_text())
    (case,) = analysis["pipelines"]
    shown = case["stages"]["ceiling"]["cold"]["samples_per_s"]["value"]
    assert shown == pytest.approx(found["samples_per_s"])
    clusters.check_nothing_left(cluster)
