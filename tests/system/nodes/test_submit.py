"""Suites as jobs of a real Slurm: submitted, followed, gone on with after the time limit."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Dict

import pytest

from tests.build import clusters
from tests.build.hosts import Hosts, until
from tests.build.rows import rows

pytestmark = pytest.mark.slow

#: A trial takes 8 steps of half a second, all of them more than three quarters of the job's 24 s.
#: On two nodes a job also starts two agents: its limit is longer, and its steps too.
LIMITED = """
name = "limited"
budget = "2m"
[dataset]
recipe = "smoke"
samples = 64
[case]
pipeline = "null:null"
trainer = "emulated"
trainer_options = {{ step_s = {step_s} }}
batch = {batch}
{more}
[ladder]
stages = ["train"]
repeats = 5
probe = false
digest = false
"""


def iobench(cluster: Hosts, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "iobench.cli", *words]
    environment = clusters.environment(cluster)
    done = cluster.hosts[0].run(*command, env=environment, check=False, cwd=clusters.ROOT)
    assert done.returncode == 0, done.stderr
    return done


def status(cluster: Hosts, results: str) -> Dict[str, Any]:
    (found,) = json.loads(iobench(cluster, "status", results, "--json").stdout)
    return dict(found)


def seen_until_complete(cluster: Hosts, results: str) -> Dict[str, Dict[str, Any]]:
    """Wait for a suite's end; return the last that was seen of each of its states."""
    seen: Dict[str, Dict[str, Any]] = {}

    def ended() -> bool:
        found = status(cluster, results)
        seen[found["state"]] = found
        assert found["state"] != "stopped", found
        return found["state"] == "complete" and found["job_state"][0] == "ended"

    until(ended, limit_s=240, every_s=2.0)  # a command takes half a second of a core
    return seen


def test_a_suite_is_submitted_and_followed(cluster: Hosts, batch: None) -> None:
    clusters.command(cluster, ["cold"], launcher="srun", ranks_per_node=2)
    spec, results = cluster.folder / "spec.toml", str(cluster.folder / "results")
    text = spec.read_text().replace("nodes = 2\n", "")
    spec.write_text(text + "[matrix]\nnodes = [1, 2]\n")
    data = ("--data", str(cluster.folder / "set"))
    iobench(cluster, "submit", str(spec), "--time", "5m", "--results", results, *data)
    seen = seen_until_complete(cluster, results)
    assert seen["running"]["job_state"][1].startswith("RUNNING on h[1-2], ")
    assert seen["complete"]["planned"] == seen["complete"]["usable"] == 2
    assert "2 of 2 trials VALID" in (cluster.folder / "results/latest/job.log").read_text()
    assert (cluster.folder / "results/latest/report.html").exists()
    one, two = sorted(
        clusters.records(cluster), key=lambda record: record["trial"]["case"]["nodes"]
    )
    clusters.check(two, each=2)
    assert one["status"] == "VALID", one["reasons"]
    assert [r["host"] for r in one["ranks"]] == ["h1", "h1"], "one node's ranks stay on one"
    clusters.check_nothing_left(cluster)


@pytest.mark.parametrize("nodes", rows([1], [2]))
def test_a_job_goes_on_after_its_time_limit(cluster: Hosts, batch: None, nodes: int) -> None:
    spec, results = cluster.folder / "limited.toml", str(cluster.folder / f"limited{nodes}")
    several = 'launcher = "srun"\nranks_per_node = 1\nnodes = 2' if nodes > 1 else ""
    keys = {"step_s": 0.5 * nodes, "batch": 8 // nodes, "more": several}
    spec.write_text(LIMITED.format(**keys))
    places = ("--results", results, "--out", str(cluster.folder))
    iobench(cluster, "submit", str(spec), "--time", f"{24 * nodes}s", *places)
    seen = seen_until_complete(cluster, results)
    assert seen["queued"]["job_state"][1].startswith("PENDING")
    assert 0 < seen["queued"]["usable"] < 5
    assert seen["complete"]["usable"] == 5
    assert len(seen["complete"]["starts"]) > 1
    assert len({line.split()[1] for line in seen["complete"]["starts"]}) == 1, "the same job"
    clusters.check_nothing_left(cluster)
