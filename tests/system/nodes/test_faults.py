"""Faults of one host among several: an error that names rank and node in time, nothing left on any
host, finished trials kept, and a suite that goes on once the fault is gone.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from tests.build import clusters
from tests.build.hosts import Host, Hosts, until
from tests.capabilities import fuse_program, need

pytestmark = pytest.mark.slow

#: docs/hpc.md, "Faults": the seconds until the error, and until nothing is left of the trial.
KILLED_S, UNREACHABLE_S, GONE_S = 15.0, 35.0, 60.0
#: Room for a busy machine, beside the time that is stated.
SLACK_S = 15.0
#: A trial of 8 steps of this length.
STEP_S, REPEATS = 0.6, 3
#: A mount that nothing counts makes a trial EXPLORATORY.
USABLE = {"VALID", "EXPLORATORY"}
RANK, AGENT = "-m iobench.worker", "iobench.host.agent_process"


@contextlib.contextmanager
def suite(cluster: Hosts, *, launcher: str = "mpirun", limit_s: int = 120) -> Iterator[Any]:
    """Run a suite of three trials from the first host; yield its process after the first of them.

    It has ended afterwards.
    """
    words = clusters.command(
        cluster, ["warm"], "--hosts", "h1,h2", launcher=launcher, stage="train", repeats=REPEATS,
        trainer_options={"step_s": STEP_S},
    )  # fmt: skip
    spec = cluster.folder / "spec.toml"
    spec.write_text(spec.read_text().replace("limit_s = 120", f"limit_s = {limit_s}"))
    with open(cluster.folder / "run.log", "w") as log:
        process = subprocess.Popen(
            cluster.hosts[0].enter(*words), env=clusters.environment(cluster), cwd=clusters.ROOT,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            until(lambda: len(stored(cluster)) == 1 or process.poll() is not None, 120)
            assert process.poll() is None
            yield process
            process.wait(240)
        except AssertionError as error:
            raise AssertionError((cluster.folder / "run.log").read_text()) from error
        finally:
            for pid in pids(cluster.hosts[0], "iobench.cli run"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()
            process.wait()


def stored(cluster: Hosts) -> List[Path]:
    return sorted((cluster.folder / "results/latest/runs").glob("*.json"))


def pids(host: Host, text: str) -> List[int]:
    return [pid for pid, command in host.processes().items() if text in command]


def measuring(host: Host) -> int:
    """Return the process of a host's rank, when it is in the middle of its loop."""
    until(lambda: pids(host, RANK))
    found = pids(host, RANK)[-1]
    time.sleep(2.5)
    os.kill(found, 0)
    return found


def failed(cluster: Hosts, count: int, within_s: float) -> Dict[str, Any]:
    """Wait for the record of the trial that meets the fault; return it."""
    until(lambda: len(stored(cluster)) > count, within_s + SLACK_S)
    found = clusters.records(cluster)
    assert {r["status"] for r in found[:count]} <= USABLE, "finished trials are kept"
    assert found[count]["status"] == "FAILED", found[count]["reasons"]
    return found[count]


def check_it_goes_on(cluster: Hosts) -> None:
    """No process is left of the suite; resumed it becomes complete, and no folder is left."""
    until(lambda: not any(map(left_on, cluster.hosts)), GONE_S + SLACK_S)
    kept = {path.name: path.read_bytes() for path in stored(cluster)}
    results = str(cluster.folder / "results")
    words = [clusters.sys.executable, "-m", "iobench.cli", "run", "--resume", "--results", results]
    done = clusters.run(cluster, [*words, "--hosts", "h1,h2"])
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_bytes() for path in stored(cluster)}.items() >= kept.items()
    usable = {r["trial"]["id"] for r in clusters.records(cluster) if r["status"] in USABLE}
    assert len(usable) == REPEATS
    clusters.check_nothing_left(cluster)


def left_on(host: Host) -> List[str]:
    """Return the processes of iobench and of Open MPI that are still there."""
    return [c for c in host.commands() if any(w in c for w in ("iobench", "orted", "mpirun"))]


def test_a_rank_that_is_killed(cluster: Hosts) -> None:
    with suite(cluster):
        os.kill(measuring(cluster.hosts[1]), signal.SIGKILL)
        (reason,) = failed(cluster, 1, KILLED_S)["reasons"]
        assert re.match(r"rank 1 of 2 on node h2 killed by SIGKILL", reason), reason
    assert [r["status"] for r in clusters.records(cluster)] == ["VALID", "FAILED", "VALID"]
    check_it_goes_on(cluster)


def test_a_node_that_cannot_be_reached(cluster: Hosts) -> None:
    host = cluster.hosts[1]
    with suite(cluster):
        measuring(host)
        host.run("ip", "link", "set", "eth0", "down")
        try:
            (reason,) = failed(cluster, 1, UNREACHABLE_S)["reasons"]
            # whichever is missed first: its rank, or its agent
            assert re.match(r"(rank 1 of 2 on )?node h2\b.* not answer any more", reason), reason
            until(lambda: not pids(host, RANK) and not pids(host, AGENT), GONE_S + SLACK_S)
        finally:
            host.run("ip", "link", "set", "eth0", "up")
    last = clusters.records(cluster)[-1]
    assert last["status"] == "FAILED"
    assert "node h2: its agent" in last["reasons"][0]
    check_it_goes_on(cluster)


def test_an_agent_that_is_killed(cluster: Hosts) -> None:
    host = cluster.hosts[1]
    with suite(cluster):
        measuring(host)
        (agent,) = [pid for pid in pids(host, AGENT) if "orted" not in host.processes()[pid]][-1:]
        os.kill(agent, signal.SIGKILL)
        (reason,) = failed(cluster, 1, KILLED_S)["reasons"]
        assert reason.startswith("node h2: its agent"), reason
    assert clusters.records(cluster)[-1]["reasons"][0].startswith("node h2: its agent")
    check_it_goes_on(cluster)


@contextlib.contextmanager
def through_fuse(cluster: Hosts, host: Host) -> Iterator[int]:
    """Put a FUSE filesystem over a host's dataset; yield the process that serves it."""
    need("fuse")
    place = cluster.folder / "set"
    options = f"lowerdir={place}"
    words = [str(fuse_program("fuse-overlayfs")), "-f", "-o", options, str(place)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(host.enter(*words), stdin=quiet, stdout=quiet, stderr=quiet) as entered:
        is_mounted = f"grep -q ' {place} fuse' /proc/self/mounts"
        until(lambda: host.run("sh", "-c", is_mounted, check=False).returncode == 0)
        (pid,) = pids(host, "fuse-overlayfs -f")
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGCONT)
            entered.send_signal(signal.SIGCONT)  # nsenter stops and goes on with its child
            host.run("umount", str(place))


def test_a_filesystem_that_hangs_on_one_node(cluster: Hosts) -> None:
    host, limit_s = cluster.hosts[1], 20
    with through_fuse(cluster, host) as server:
        with suite(cluster, limit_s=limit_s):
            os.kill(server, signal.SIGSTOP)
            begun = time.monotonic()
            (reason,) = failed(cluster, 1, 2 * limit_s)["reasons"]
            assert re.search(r"node h2", reason), reason
            assert time.monotonic() - begun < 2 * limit_s + SLACK_S
        until(lambda: not pids(host, RANK) and not pids(host, AGENT), GONE_S)
        os.kill(server, signal.SIGCONT)
        check_it_goes_on(cluster)
