"""Two real hosts, a container a rank: the launcher outside."""

from __future__ import annotations

import contextlib

import pytest

from iobench.core.cases import Case
from tests.build import clusters, containers
from tests.build.hosts import Hosts
from tests.build.rows import rows
from tests.capabilities import image_folder, need

pytestmark = pytest.mark.system


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_apptainer_over_two_hosts(cluster: Hosts, launcher: str, batch: None) -> None:
    need("apptainer")
    need("image")
    words = clusters.command(
        cluster, ["cold"], "--images", str(image_folder()), launcher=launcher, runtime="apptainer"
    )
    if launcher == "srun":
        clusters.run_in_job(cluster, words, "--ntasks-per-node=1")
    else:
        done = clusters.run(cluster, [*words, "--hosts", "h1,h2"])
        assert done.returncode == 0, done.stderr
    clusters.check_all(cluster, ["cold"])
    (record,) = clusters.records(cluster)
    assert record["runtime"]["form"] == "sif"


@pytest.mark.parametrize("runtime", rows(["podman"], ["docker"]))
def test_engines_over_two_hosts(cluster: Hosts, runtime: str) -> None:
    """Two containers on each host, with what they need of it, that exchange gradients."""
    case = Case(runtime=runtime)
    containers.needs(case)
    with contextlib.ExitStack() as undo:
        if runtime == "podman":
            containers.images_of(case)
            clusters.with_podman(cluster)
        else:
            need("image")
            archive = image_folder() / "torch.tar"
            undo.enter_context(clusters.with_docker(cluster, archive))
        shared = dict.fromkeys(("network", "ipc", "pid"), "host")
        words = clusters.command(
            cluster, ["cold"], "--hosts", "h1,h2", "--images", str(image_folder()),
            launcher="mpirun", runtime=runtime, runtime_options=shared, ranks_per_node=2,
            stage="train", trainer_options={"step_s": 0.02, "exchange_bytes": 100_000},
        )  # fmt: skip
        done = clusters.run(cluster, words)
        assert done.returncode == 0, done.stderr
        clusters.check_all(cluster, ["cold"], each=2)
        (record,) = clusters.records(cluster)
        found = {key: record["runtime"][key] for key in ("form", "scope", *shared)}
        assert found == {"form": runtime, "scope": "rank", **shared}
        assert len({rank["fingerprint"]["mount_namespace"] for rank in record["ranks"]}) == 4
        for host in cluster.hosts:
            left = host.run(runtime, "ps", "--all", "--quiet", env=cluster.environment)
            assert left.stdout == ""


def test_one_container_a_node(cluster: Hosts) -> None:
    """mpirun starts a container on each host, and torchrun in it that host's two ranks."""
    need("apptainer")
    need("image")
    words = clusters.command(
        cluster, ["cold"], "--images", str(image_folder()), "--hosts", "h1,h2", launcher="torchrun",
        runtime="apptainer", scope="node", ranks_per_node=2,
    )  # fmt: skip
    done = clusters.run(cluster, words)
    assert done.returncode == 0, done.stderr
    clusters.check_all(cluster, ["cold"], each=2)
    (record,) = clusters.records(cluster)
    assert record["runtime"]["scope"] == "node"
    spaces = [rank["fingerprint"]["mount_namespace"] for rank in record["ranks"]]
    assert spaces[0] == spaces[1] != spaces[2] == spaces[3]


def test_torch_trains_one_net_under_srun_in_apptainer(cluster: Hosts, batch: None) -> None:
    need("apptainer")
    need("image")
    words = clusters.command(
        cluster, ["warm"], "--images", str(image_folder()), launcher="srun", runtime="apptainer",
        stage="train", trainer="torch", transform="cifar32",
        trainer_options={"net": "resnet44cifar", "threads": 1},
    )  # fmt: skip
    clusters.run_in_job(cluster, words, "--ntasks-per-node=1")
    clusters.check_all(cluster, ["warm"])
    clusters.check_one_net(cluster)


def test_software_is_evicted_on_both_hosts(cluster: Hosts) -> None:
    need("apptainer")
    need("image")
    words = clusters.command(
        cluster, ["cold"], "--images", str(image_folder()), "--hosts", "h1,h2", launcher="mpirun",
        runtime="apptainer", stage="start",
    )  # fmt: skip
    done = clusters.run(cluster, words)
    assert done.returncode == 0, done.stderr
    (record,) = clusters.records(cluster)
    assert (record["status"], record["reasons"]) == ("VALID", [])
    proofs = {node["node"]: node["cache"]["resident_before"] for node in record["nodes"]}
    assert len(proofs) == 2
    assert all(before < 0.001 for before in proofs.values()), proofs
    assert record["notes"]["software"]["fetched"] > 50e6
    assert "start-up" in done.stdout
