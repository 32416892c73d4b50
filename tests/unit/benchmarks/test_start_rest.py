"""The rest before a start: runtimes that make it for real, and when it counts as a cause."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any, Dict

import pytest

from benchmarks import start_rest
from iobench.core import registry
from iobench.core.protocols import Start
from iobench.spec import load


@pytest.fixture(autouse=True)
def plugged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOBENCH_PLUGINS", "")
    start_rest.plug_in(tmp_path, 0.3)


def row(low: float, high: float) -> Dict[str, Any]:
    return {"interval": {"low": low, "high": high}}


def test_bare_metal_rests_before_it_starts_the_command() -> None:
    began = time.monotonic()
    argv = registry.load("runtimes", "rested").make().argv(["printf", "%s|", "a b", '"'], Start())
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == 'a b|"|'
    assert time.monotonic() - began >= 0.3


def test_the_work_beside_a_start_ends_by_itself() -> None:
    script = registry.load("runtimes", "unrested").make().argv(["true"], Start(image="i"))[2]
    shell = subprocess.Popen(["/bin/sh", "-c", script, "sh", "cat"], stdin=subprocess.PIPE)
    children = Path(f"/proc/{shell.pid}/task/{shell.pid}/children")
    seen = 0
    for _ in range(100):
        seen = max(seen, len(children.read_text().split()))
        time.sleep(0.01)
    assert seen >= 1
    shell.communicate()
    assert shell.returncode == 0


@pytest.mark.parametrize("turns", [False, True])
def test_its_specs_are_valid(turns: bool) -> None:
    labels = [c.runtime for c in load.expand(load.parse(start_rest.document("jpeg", turns, 12, 3)))]
    assert ("unrested" in labels) is not turns


@pytest.mark.parametrize(
    ("added", "removed", "expected"),
    [
        (row(0.9, 0.95), row(1.02, 1.1), True),
        (row(0.9, 1.01), row(1.02, 1.1), False),
        (row(0.9, 0.95), row(0.99, 1.1), False),
        ({"interval": None}, {"interval": {"low": None, "high": None}}, False),
    ],
)
def test_a_cause_is_added_and_taken_away(
    added: Dict[str, Any], removed: Dict[str, Any], expected: bool
) -> None:
    rows = {start_rest.ADDED: added, start_rest.REMOVED: removed}
    assert start_rest.cause(rows) is expected
