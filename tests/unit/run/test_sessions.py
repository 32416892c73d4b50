"""A resume on other hardware or software is refused, on a host of the same kind it goes on."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from iobench.core.cases import Plan
from iobench.core.errors import DatasetError, ResultsError
from iobench.core.records import VALID, Record
from iobench.host import fingerprint
from iobench.host.agent import LOCAL, Agent
from iobench.plan.resolve import Here, resolve
from iobench.run import sessions
from iobench.run.ledger import Ledger
from iobench.spec import load
from tests.build.datasets import indexed
from tests.build.pairs import record as made
from tests.capabilities import need

DOCUMENT = {
    "name": "null",
    "compute_s": 0.05,
    "budget": "1m",
    "case": {"trainer": "null", "batch": 4, "workers": 0},
    "matrix": {"pipeline": ["null:null"], "prefetch": [1, 2]},
    "ladder": {"stages": ["read", "load"], "repeats": 1},
    "contrasts": [{"over": "prefetch", "base": 1, "caches": ["warm"], "pairs": 2}],
}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return resolve(load.parse(DOCUMENT), Here(indexed(tmp_path / "data", 32)), 60.0, "now")


def changed(facts: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return the facts with one of them, given by its keys, changed."""
    head, _, rest = path.partition(".")
    return {**facts, head: changed(facts[head], rest, value) if rest else value}


def test_equal_hosts_go_on_and_each_start_is_kept(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sessions.entered(plan)
    monkeypatch.setattr(LOCAL, "name", lambda: "node18", raising=False)
    monkeypatch.setenv("PBS_JOBID", "9.server")
    second = sessions.entered(first)
    assert [s.host for s in second.sessions] == [os.uname().nodename, "node18"]
    assert [s.job for s in second.sessions][1:] == ["9.server"]
    assert second.sessions[0].facts == second.sessions[1].facts


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("cpu.model", "Another CPU", "cpu model: "),
        ("cores", 1000, "cores: "),
        ("kernel", "5.4", "kernel: "),
        ("libraries.numpy", "1.0", "numpy: "),
        ("mount.fstype", "lustre", "mount fstype: "),
        ("limits.memory_bytes", 1 << 20, "limits memory bytes: "),
        ("memory_bytes", 1 << 30, "memory bytes: "),
        ("iobench", "0.0.1", "iobench: "),
    ],
)
def test_what_differs_is_named_with_what_to_do(
    path: str, value: Any, words: str, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = sessions.entered(plan)
    there = changed(begun.sessions[0].facts, path, value)
    facts = {name: fact for name, fact in there.items() if name != "iobench"}
    monkeypatch.setattr(LOCAL, "facts", lambda *_: facts, raising=False)
    if path == "iobench":
        monkeypatch.setattr(sessions.iobench, "__version__", value)
    with pytest.raises(ResultsError, match=words) as error:
        sessions.entered(begun)
    assert f" against {value}" in str(error.value)
    assert "run it anew here and see both with `iobench compare`" in str(error.value)


def test_what_nodes_of_one_kind_have_each_for_itself_is_no_difference(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = sessions.entered(plan)
    facts = begun.sessions[0].facts
    memory = facts["memory_bytes"]
    assert sessions.unlike(facts, {**facts, "memory_bytes": int(memory * 0.99)}) == []
    real = fingerprint.collect

    def collect(*args: Any) -> dict[str, Any]:
        found = real(*args)
        options = {"super_options": "rw,vers=4.2,clientaddr=10.0.0.18", "device": "0:99"}
        found["mount"] |= options
        found["environment"]["CUDA_VISIBLE_DEVICES"] = "3"
        return {**found, "boot_id": "another", "host": "node18"}

    monkeypatch.setattr(fingerprint, "collect", collect)
    found = fingerprint.facts(Path("/"), [])
    assert found["mount"]["super_options"] == "rw,vers=4.2"
    assert "10.0.0.18" not in json.dumps(found)
    assert "0:99" not in json.dumps(found)
    assert found["environment"] == facts["environment"]
    assert "another" not in json.dumps(found)


def test_data_that_have_gone_are_named(plan: Plan) -> None:
    gone = dataclasses.replace(plan.dataset, root="/no/such/data")
    with pytest.raises(DatasetError, match="/no/such/data is not there"):
        sessions.measuring(gone).__enter__()


def ran(plan: Plan, hosts: Mapping[str, str]) -> list[Record]:
    """Return a usable record of each trial that is named, on its host."""
    found = [t for t in plan.trials if t.id in hosts]
    return [dataclasses.replace(made(t), host=hosts[t.id]) for t in found]


def test_a_ladder_is_run_on_one_host_and_a_whole_one_is_kept(plan: Plan) -> None:
    ids = [t.id for t in plan.trials if t.stage in ("read", "load")]
    assert len(ids) >= 4
    half = dict.fromkeys(ids[:2], "node17")
    assert {*Ledger(plan, ran(plan, half), "node17").last} == {*half}
    moved = Ledger(plan, ran(plan, half), "node18")
    assert not moved.last
    assert sorted(moved.strays) == sorted(half)
    whole = {t.id: "node17" for t in plan.trials}
    assert {*Ledger(plan, ran(plan, whole), "node18").last} == {*whole}
    mixed = whole | {ids[0]: "node18"}
    assert sorted(Ledger(plan, ran(plan, mixed), "node17").strays) == [ids[0]]


def test_a_block_of_two_hosts_is_run_again_whole(plan: Plan) -> None:
    from iobench.plan.blocks import blocks
    from iobench.plan.contrasts import contrasts

    found = contrasts(plan.rules, {})
    more = blocks(found, plan.cases, seed=1, start=len(plan.trials) + 1)
    plan = dataclasses.replace(plan, trials=(*plan.trials, *more), contrasts=tuple(found), phase=2)
    one, other = (t.id for t in more if t.block == more[0].block)
    hosts = {t.id: "node17" for t in plan.trials}
    assert not Ledger(plan, ran(plan, hosts), "node17").split
    (block,) = Ledger(plan, ran(plan, hosts | {other: "node18"}), "node17").split
    assert {t.id for t in block} == {one, other}


SPEC = """
name = "two"
compute_s = 0.05
budget = "1m"
[dataset]
recipe = "smoke"
samples = 32
[case]
trainer = "null"
batch = 4
workers = 0
[matrix]
pipeline = ["null:null"]
[ladder]
stages = ["read", "load", "train"]
repeats = 1
"""


def iobench(folder: Path, *words: str, prefix: tuple[str, ...] = (), **env: str) -> Any:
    command = [*prefix, sys.executable, "-m", "iobench.cli.main", *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, **env}, check=False
    )


@pytest.mark.slow
def test_a_real_suite_that_goes_on_under_another_host_s_name(tmp_path: Path) -> None:
    """A UTS namespace gives a real run another host name; all else is equal."""
    need("root")
    (tmp_path / "two.toml").write_text(SPEC)
    latest = tmp_path / "results" / "latest"
    words = [sys.executable, "-m", "iobench.cli.main", "run", "two.toml"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL) as driver:  # fmt: skip
        while not list(latest.glob("runs/*.json")):
            assert driver.poll() is None
            time.sleep(0.02)
        holder = json.loads((latest / ".lock").read_text())["pid"]
        os.kill(holder, signal.SIGSTOP)  # it holds what it holds
        second = iobench(tmp_path, "run", "--resume")
        third = iobench(tmp_path, "run", "two.toml", "--results", "third")
        os.kill(holder, signal.SIGINT)
        os.kill(holder, signal.SIGCONT)
    assert second.returncode == 2
    assert f"is being run by `iobench run two.toml` on host {os.uname().nodename}" in second.stderr
    assert third.returncode == 2
    assert "is being measured on this node by `iobench run two.toml` of user root" in third.stderr
    assert not (tmp_path / "third").exists()
    assert driver.returncode == 130
    before = {p.name: json.loads(p.read_text()) for p in latest.glob("runs/*.json")}
    assert {r["host"] for r in before.values()} == {os.uname().nodename}
    refused = iobench(tmp_path, "run", "--resume", OMP_NUM_THREADS="7")
    assert refused.returncode == 2
    assert "OMP_NUM_THREADS: " in refused.stderr
    assert " against 7" in refused.stderr
    assert len(list(latest.glob("runs/*.json"))) == len(before)
    renamed = ("unshare", "--uts", "sh", "-c", 'hostname node18; exec "$@"', "sh")
    done = iobench(tmp_path, "run", "--resume", prefix=renamed, SLURM_JOB_ID="77")
    assert done.returncode == 0, done.stderr
    assert f"note: {len(before)} trials of the ladder ran on another host" in done.stderr
    rows = list(csv.DictReader((latest / "trials.csv").read_text().splitlines()))
    last = {row["trial"]: row for row in rows}
    timed = [row for row in last.values() if row["stage"] != "digest"]
    assert {(r["host"], r["job"], r["status"]) for r in timed} == {("node18", "77", VALID)}
    plan = json.loads((latest / "plan.json").read_text())
    assert [(s["host"], s["job"]) for s in plan["sessions"]][1:] == [("node18", "77")]
    shown = json.loads(iobench(tmp_path, "show", "--json").stdout)
    assert shown["complete"]
    assert shown["hosts"][-1]["host"] == "node18"


def test_an_agent_has_a_name_and_tells_the_facts(tmp_path: Path) -> None:
    agent = Agent()
    assert agent.name() == os.uname().nodename
    facts = agent.facts(tmp_path, {"numpy", "no-such-thing"})
    assert json.loads(json.dumps(facts)) == facts
    assert "numpy" in facts["libraries"]
    assert "no-such-thing" not in facts["libraries"]
