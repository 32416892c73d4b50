"""Suites over several hosts, for tests: their data, their command, what their records must say."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

import numpy as np

from iobench.core.order import remainder
from iobench.data import convert, make
from tests.build.hosts import Host, Hosts, hosts, until

ROOT = Path(__file__).parents[2]
SAMPLES = 64
#: The device goes with the last mount of it.
MOUNT = """
device=$(losetup --find --show --direct-io=on "$1")
mount -o ro "$device" "$2"
losetup --detach "$device"
"""
#: Of podman: /run is a host's own; the machine's store is shown read-only.
PODMAN = """
mount --bind -o ro /var/lib/containers/storage /mnt
mount -t tmpfs none /var/lib/containers
mount --bind "$1" /etc/containers
"""
STORAGE = """
[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
[storage.options]
additionalimagestores = ["/mnt"]
"""


@contextlib.contextmanager
def with_data(folder: Path, samples: int = SAMPLES, count: int = 2) -> Iterator[Hosts]:
    """Bring up ``count`` hosts; each has the dataset, at one path, on an ext4 of its own.

    So the page cache of one does not hold the other's data.
    """
    made = make.make("imagenet-like", folder / "made", samples=samples, seed=1)
    convert.convert(made, "lmdb")
    (folder / "set").mkdir()
    with hosts(folder, count) as found:
        for host in found.hosts:
            image = folder / f"{host.name}.ext4"
            size = f"{64 + samples // 4}M"
            command = ["mkfs.ext4", "-q", "-d", str(folder / "made"), str(image), size]
            subprocess.run(command, check=True)
            host.run("sh", "-ec", MOUNT, "sh", str(image), str(folder / "set"))
        yield found


def with_podman(cluster: Hosts) -> None:
    """Give each host a store of podman's own, which shows this machine's images."""
    etc = cluster.folder / "etc_containers"
    shutil.copytree("/etc/containers", etc)
    (etc / "storage.conf").write_text(STORAGE)
    for host in cluster.hosts:
        host.run("sh", "-ec", PODMAN, "sh", str(etc))


@contextlib.contextmanager
def with_docker(cluster: Hosts, archive: Path) -> Iterator[None]:
    """Run a Docker daemon on each host, with a store of its own that holds an image.

    The first host's daemon unpacks it; the others begin with copies of its store.
    """
    stores = cluster.folder / "docker"
    first, *others = ((host, stores / host.name) for host in cluster.hosts)
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, stores, ignore_errors=True)
        with _daemon(*first, cluster.environment):
            load = ("docker", "load", "--quiet", "--input", str(archive))
            first[0].run(*load, env=cluster.environment)
        for _, store in others:
            subprocess.run(["cp", "--archive", str(first[1]), str(store)], check=True)
        for each in (first, *others):
            undo.enter_context(_daemon(*each, cluster.environment))
        yield


@contextlib.contextmanager
def _daemon(host: Host, store: Path, environment: Mapping[str, str]) -> Iterator[None]:
    store.mkdir(parents=True, exist_ok=True)
    options = ["--data-root", str(store), "--exec-root", "/run/docker", "--bridge=none"]
    options += ["--iptables=false", "--ip6tables=false", "--ip-forward=false"]
    with open(store / "log", "wb") as log:
        daemon = subprocess.Popen(host.enter("dockerd", *options), stdout=log, stderr=log)
    try:
        asked = ("docker", "info")
        until(lambda: not host.run(*asked, env=environment, check=False).returncode)
        yield
    finally:
        host.run("pkill", "-x", "dockerd", check=False)  # nsenter would pass no signal on
        daemon.wait(60)


def command(
    cluster: Hosts, caches: Sequence[str], *more: str, stage: str = "load", repeats: int = 1,
    into: Optional[Path] = None, **case: Any,
) -> List[str]:  # fmt: skip
    """Return the words that run a suite of one case; ``more``: further options.

    ``into``: the suite's own folder; None: one in ``results``, which is emptied.
    """
    keys = {
        "pipeline": "threads:lmdb", "trainer": "emulated", "ranks_per_node": 1, "batch": 4,
        "workers": 1, **case,
    }  # fmt: skip
    spec = {
        "name": "two", "budget": "2m", "limit_s": 120, "compute_s": 3,
        "case": {"nodes": 2, **keys},
        "ladder": {
            "stages": [stage], "caches": list(caches), "repeats": repeats, "probe": False,
            "digest": False,
        },
    }  # fmt: skip
    return words(cluster, spec, *more, into=into)


def words(
    cluster: Hosts, spec: Mapping[str, Any], *more: str, into: Optional[Path] = None
) -> List[str]:
    """Return the words that run a suite; ``spec``: the content of its file."""
    path = cluster.folder / "spec.toml"
    path.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in spec.items()))
    iobench = [sys.executable, "-m", "iobench.cli", "run", str(path)]
    places = ["--into", str(into)]
    if into is None:
        shutil.rmtree(cluster.folder / "results", ignore_errors=True)
        places = ["--results", str(cluster.folder / "results")]
    return [*iobench, *places, "--data", str(cluster.folder / "set"), *more]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(v)}" for key, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def run(cluster: Hosts, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a suite from the first host."""
    return cluster.hosts[0].run(*words, env=environment(cluster), check=False, cwd=ROOT)


def run_into(cluster: Hosts, place: Path, words: Sequence[str]) -> None:
    """Run a suite from the first host into ``place``, all of it or nothing; else SystemExit."""
    shutil.rmtree(place, ignore_errors=True)
    done = run(cluster, words)
    if done.returncode:
        shutil.rmtree(place, ignore_errors=True)
        raise SystemExit(f"{place}: {done.stdout}{done.stderr}")


def run_in_job(cluster: Hosts, words: Sequence[str], *options: str) -> str:
    """Run a suite as a job of Slurm on both hosts, with success; return what it wrote."""
    script, log = cluster.folder / "job.sh", cluster.folder / "job.log"
    script.write_text(f"#!/bin/sh\ncd {ROOT} && exec {shlex.join(words)}\n")
    job = ["sbatch", "--wait", "--nodes=2", *options, "--output", str(log), str(script)]
    done = cluster.hosts[0].run(*job, env=environment(cluster), check=False)
    text = log.read_text() if log.exists() else done.stderr
    assert done.returncode == 0, text
    return text


def environment(cluster: Hosts) -> Dict[str, str]:
    return {**cluster.environment, "PYTHONPATH": str(ROOT)}


def records(cluster: Hosts) -> List[Dict[str, Any]]:
    paths = sorted((cluster.folder / "results/latest/runs").glob("*.json"))
    found = [json.loads(path.read_text()) for path in paths]
    for path, record in zip(paths, found, strict=True):
        for rank in record["ranks"]:
            if rank["columns"]:
                columns = np.load(path.with_suffix("") / f"{rank['rank']}.npz")
                rank["steps"]["samples"] = columns["steps.samples"].tolist()
    return found


def check_all(cluster: Hosts, caches: Sequence[str], *, each: int = 1) -> None:
    """Judge the records of a suite that has ended well, and what it left."""
    last = {record["trial"]["cache"]: record for record in records(cluster)}
    assert sorted(last) == sorted(caches)
    for record in last.values():
        check(record, each)
    check_nothing_left(cluster)


def check(record: Dict[str, Any], each: int) -> None:
    """Judge what a record says of all nodes: places, proofs, samples."""
    cache, case = record["trial"]["cache"], record["trial"]["case"]
    assert record["status"] == "VALID", record["reasons"]
    names = [f"h{n}" for n in range(1, case["nodes"] + 1)]
    assert [n["node"] for n in record["nodes"]] == names
    assert [r["host"] for r in record["ranks"]] == [name for name in names for _ in range(each)]
    assert [n["ranks"] for n in record["nodes"]] == [
        list(range(first, first + each)) for first in range(0, len(names) * each, each)
    ]
    for node in record["nodes"]:
        proof = node["cache"]
        assert proof["resident_before"] == (0.0 if cache == "cold" else 1.0)
        assert node["mount"]["fstype"] == "ext4"
        needed, crossed = proof["bytes_needed"], proof["bytes_storage"]
        assert 0 < needed < record["cache"]["bytes_needed"]
        if cache == "cold":
            assert crossed >= needed
    devices = {n["mount"]["device"] for n in record["nodes"]}
    assert len(devices) == len(names), "a filesystem of its own"
    whole = SAMPLES - remainder(SAMPLES, case["batch"], len(names) * each)
    assert sum(sum(r["steps"]["samples"]) for r in record["ranks"]) == whole
    digests = {r["ids_digest"] for r in record["ranks"]}
    assert len(digests) == len(names) * each, "no two ranks read the same"


def check_one_net(cluster: Hosts) -> None:
    """Judge what the ranks of trainer ``torch`` say: one net, each rank its own samples."""
    (record,) = records(cluster)
    trainers = [rank["notes"]["trainer"] for rank in record["ranks"]]
    assert len({t["weights_digest"] for t in trainers}) == 1
    assert len({t["last_loss"] for t in trainers}) == 2
    assert all(t["comm_s"] > 0 for t in trainers)


def check_nothing_left(cluster: Hosts) -> None:
    """No process of iobench and no folder of its own is on any host."""
    for host in cluster.hosts:
        assert not [c for c in host.commands() if "iobench" in c]
        shown = {path.parts[2] for path in (cluster.folder, ROOT) if path.parts[1] == "tmp"}
        left = set(host.run("ls", "/tmp").stdout.split())
        left.discard("torchinductor_root")  # torchrun's own now and then, and empty
        assert left <= shown, host.run("find", *(f"/tmp/{name}" for name in left - shown)).stdout
