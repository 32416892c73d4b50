"""A row of each kind of fault; and the invariants find what they are for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import fault_invariants as hold
from benchmarks import faults
from benchmarks.fault_scene import MOMENTS, WHOLE, Ended
from tests.capabilities import need

#: Leaves a process behind, stopped, whose parent has ended.
LEAVES = """
import os, signal, subprocess, sys, time
import psutil
from benchmarks import fault_invariants as hold
hold.GRACE_S = 0.3
hold.adopt_orphans()
sleep = "import os, signal, time; {how}; time.sleep(60)"
inner = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {{sleep!r}}])"
subprocess.run([sys.executable, "-c", inner], check=True)
while not (left := psutil.Process().children()) or left[0].status() not in ("{state}",):
    time.sleep(0.01)
print(hold.left_running(frozenset()))
"""


def ended(status: int | None, stderr: str, stdout: str = "") -> Ended:
    return Ended(status, stdout, stderr, ("iobench",))


def broken(found: Ended, says: str = "", *, heard: bool = True) -> list[str]:
    return list(hold.told(found, frozenset((0, 2, 130)), says, heard=heard))


def test_what_is_as_it_should_be_is_not_found() -> None:
    assert not broken(ended(0, "[3/4] making samples\n"))
    assert not broken(ended(2, "note: x\niobench: a: No space; free some\n"), "No space")
    waiting = "iobench: the filesystem at /x (fuse) has not answered for 5 s: waiting\n"
    assert not broken(ended(130, f"{waiting}iobench: interrupted; go on\n"))
    assert not broken(ended(2, ""), heard=False)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (ended(None, ""), "it hung"),
        (ended(1, "iobench: x\n"), "status 1, not 0 or 2 or 130"),
        (ended(-9, ""), "status -9"),
        (ended(2, "Traceback (most recent call last):\niobench: x\n"), "alien words"),
        (ended(0, "Exception ignored in: <function f>\n"), "alien words"),
        (ended(2, ""), "0 lines of iobench's"),
        (ended(2, "iobench: x\niobench: y\n"), "2 lines of iobench's"),
        (ended(2, "iobench: x\nand more\n"), "not the last"),
        (ended(2, "iobench: other\n"), "its line has no"),
    ],
)
def test_a_wrong_end_is_found(found: Ended, words: str) -> None:
    assert any(words in each for each in broken(found, "No space|x|y|^$"))


@pytest.mark.parametrize("how", ["0", "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_a_process_that_is_left_is_found_also_a_stopped_one(how: str) -> None:
    state = "stopped" if how != "0" else "sleeping"
    words = [sys.executable, "-c", LEAVES.format(how=how, state=state)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert f"{state} process" in done.stdout, done


def test_what_lies_about_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "GRACE_S", 0.0)
    names = [frozenset({"mount /"}), frozenset({"mount /", "mount /left"})]
    monkeypatch.setattr(hold.Around, "now", lambda **_: hold.Around(names.pop(0)))
    before = hold.Around.now()
    assert hold.left_lying(before) == ["left: mount /left"]
    (tmp_path / "iobench-x").mkdir()
    assert hold.left_in(tmp_path) == ["left in TMPDIR: iobench-x"]


def test_a_torn_record_is_found(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "plan.json").write_text("{}")
    assert not list(hold.consistent(tmp_path))
    (tmp_path / "runs" / "0001-x.1.json").write_text('{"trial": ')
    assert list(hold.consistent(tmp_path)) == ["0001-x.1.json is not JSON"]


def test_every_row_has_its_own_name_and_a_known_moment() -> None:
    rows = [
        (fault.name, moment)
        for kind in faults.kinds().values()
        for fault in kind
        for moment in fault.moments
    ]
    assert len(rows) == len(set(rows)) > 100
    assert {moment for _, moment in rows} == {*MOMENTS, *WHOLE}
    assert {f.suite for kind in faults.kinds().values() for f in kind} <= set(faults.SUITES)


def test_the_few_are_of_every_kind_and_of_what_comes_before_the_trials() -> None:
    few = {
        kind: {m for f in found for m in f.moments if re.search(faults.FEW, f"{f.name} @{m}")}
        for kind, found in faults.kinds().items()
    }
    assert all(few.values()), few
    assert sum(map(len, few.values())) > len(few)
    assert {"preparing", "turns", "report"} <= {m for moments in few.values() for m in moments}


@pytest.mark.breadth
def test_a_row_of_each_kind_holds(tmp_path: Path) -> None:
    for capability in ("root", "loop", "lmdb", "gcc"):
        need(capability)
    figures = tmp_path / "rows.json"
    words = ["-m", "benchmarks.faults", "--few", "--data", str(tmp_path), "--json", str(figures)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(figures.read_text())
    assert len(rows) == faults.FEW.count("|") + 1
