"""Two real hosts: ranks started by mpirun and srun, each node's page cache set and proven.

The hosts are namespaces (tests.build.hosts); each mounts an ext4 of its own, so the page cache of
one does not hold the other's data.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from iobench.core.order import add_sums
from iobench.data import convert, make
from iobench.host import page_lock
from tests.build.hosts import Host, Hosts, hosts
from tests.build.slurm import slurm
from tests.capabilities import need

ROOT = Path(__file__).parents[3]
SAMPLES = 64
SPEC = """
name = "two"
budget = "2m"
limit_s = 120
[case]
pipeline = "torch:lmdb"
trainer = "emulated"
launcher = "{launcher}"
nodes = 2
ranks_per_node = {each}
batch = 4
workers = 1
[ladder]
stages = ["load"]
caches = [{caches}]
repeats = 1
probe = false
digest = false
"""

#: The device goes with the last mount of it.
MOUNT = """
device=$(losetup --find --show --direct-io=on "$1")
mount -o ro "$device" "$2"
losetup --detach "$device"
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts with a Slurm, and a dataset on a filesystem of each host's own, at one path."""
    for capability in ("hosts", "loop", "lmdb", "torch"):
        need(capability)
    folder = tmp_path_factory.mktemp("cluster")
    made = make.make("imagenet-like", folder / "made", samples=SAMPLES, seed=1)
    convert.convert(made, "lmdb")
    (folder / "set").mkdir()
    with hosts(folder) as found:
        for host in found.hosts:
            image = folder / f"{host.name}.ext4"
            command = ["mkfs.ext4", "-q", "-d", str(folder / "made"), str(image), "64M"]
            subprocess.run(command, check=True)
            host.run("sh", "-ec", MOUNT, "sh", str(image), str(folder / "set"))
        yield found
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def batch(cluster: Hosts) -> None:
    need("slurm")
    slurm(cluster)


def command_of(cluster: Hosts, launcher: str, caches: str, *more: str, each: int = 1) -> List[str]:
    """Return the words that run a suite; its results are in the folder named as the launcher."""
    spec = cluster.folder / f"{launcher}.toml"
    spec.write_text(SPEC.format(launcher=launcher, caches=caches, each=each))
    shutil.rmtree(cluster.folder / launcher, ignore_errors=True)
    results = ["--results", str(cluster.folder / launcher)]
    iobench = [sys.executable, "-m", "iobench.cli", "run", str(spec), *results]
    return [*iobench, "--data", str(cluster.folder / "set"), *more]


def environment(cluster: Hosts) -> Dict[str, str]:
    return {**cluster.environment, "PYTHONPATH": str(ROOT)}


def records(cluster: Hosts, launcher: str) -> List[Dict[str, Any]]:
    paths = sorted((cluster.folder / launcher / "latest/runs").glob("*.json"))
    return [json.loads(path.read_text()) for path in paths]


def check(record: Dict[str, Any], cache: str, each: int) -> None:
    """Judge what a record says of both nodes: places, proofs, samples."""
    assert record["status"] == "VALID", record["reasons"]
    assert record["trial"]["cache"] == cache
    assert [n["node"] for n in record["nodes"]] == ["h1", "h2"]
    assert [r["host"] for r in record["ranks"]] == ["h1"] * each + ["h2"] * each
    assert [n["ranks"] for n in record["nodes"]] == [
        list(range(each)), list(range(each, 2 * each)),
    ]  # fmt: skip
    for node in record["nodes"]:
        proof = node["cache"]
        assert proof["resident_before"] == (0.0 if cache == "cold" else 1.0)
        assert node["mount"]["fstype"] == "ext4"
        needed, crossed = proof["bytes_needed"], proof["bytes_storage"]
        assert 0 < needed < record["cache"]["bytes_needed"]
        assert crossed >= needed if cache == "cold" else crossed == 0
    assert len({n["mount"]["device"] for n in record["nodes"]}) == 2, "a filesystem of its own"
    seen = sum(sum(r["steps"]["samples"]) for r in record["ranks"])
    assert seen == SAMPLES, "every sample once"
    assert add_sums([r["ids_sum"] for r in record["ranks"]])


def nothing_left(cluster: Hosts) -> None:
    left = {host.name: host.commands() for host in cluster.hosts}
    ours = [c for commands in left.values() for c in commands if "iobench" in c]
    assert not ours
    for host in cluster.hosts:
        assert host.run("ls", "/tmp").stdout.split() == [cluster.folder.parts[2]]


def test_mpirun_over_two_hosts(cluster: Hosts) -> None:
    first = cluster.hosts[0]
    command = command_of(cluster, "mpirun", '"cold", "warm"', "--hosts", "h1,h2", each=2)
    done = first.run(*command, env=environment(cluster), check=False)
    assert done.returncode == 0, done.stderr
    found = {r["trial"]["cache"]: r for r in records(cluster, "mpirun")}
    for cache in ("cold", "warm"):
        assert cache in found, done.stderr + done.stdout
        check(found[cache], cache, each=2)
    nothing_left(cluster)


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
    first, second = cluster.hosts
    (file,) = (cluster.folder / "made").glob("lmdb/**/data.mdb")
    file = cluster.folder / "set" / file.relative_to(cluster.folder / "made")
    command = command_of(cluster, "mpirun", '"cold"', "--hosts", "h1,h2")
    with held(second, file):
        done = first.run(*command, env=environment(cluster), check=False)
    assert done.returncode == 1
    for record in records(cluster, "mpirun"):
        assert record["status"] == "INVALID"
        assert all(reason.startswith("node h2: not cold") for reason in record["reasons"])
        assert [n["cache"]["resident_before"] for n in record["nodes"]] == [0.0, 1.0]
        assert record["cache"]["resident_before"] == 1.0, "the worst counts"


def test_srun_inside_an_allocation(cluster: Hosts, batch: None) -> None:
    first, log = cluster.hosts[0], cluster.folder / "job.log"
    script = cluster.folder / "job.sh"
    words = command_of(cluster, "srun", '"cold", "warm"')
    script.write_text("#!/bin/sh\nexec " + subprocess.list2cmdline(words) + "\n")
    job = ["sbatch", "--wait", "--nodes=2", "--ntasks-per-node=1", "--output", str(log)]
    done = first.run(*job, str(script), env=environment(cluster), check=False)
    assert done.returncode == 0, log.read_text()
    found = {r["trial"]["cache"]: r for r in records(cluster, "srun")}
    for cache in ("cold", "warm"):
        check(found[cache], cache, each=1)
    nothing_left(cluster)
