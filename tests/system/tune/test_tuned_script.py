"""The worked example of docs/tuning.md, tuned for real: its loader is changed from outside."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.build import containers

pytestmark = pytest.mark.breadth

ROOT = Path(__file__).parents[3]
VERDICTS = {"leave it", "change", "not shown"}


def test_the_example_is_tuned_from_outside(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```python train\.py\n(.*?)^```$", (ROOT / "docs/tuning.md").read_text(),
                         re.M | re.S)  # fmt: skip
    (tmp_path / "train.py").write_text(text)
    data = containers.small_dataset(tmp_path / "data", samples=96)
    command = shlex.join([sys.executable, "train.py", str(Path(data.root) / "jpeg")])
    done = subprocess.run(
        [sys.executable, "-m", "iobench.cli", "tune", "--script", command, "--minutes", "1",
         "--seconds", "0.2", "--cores", "2", "--only", "workers=1,2", "--only", "prefetch=2",
         "--into", str(tmp_path / "tune"), "--json"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"] in VERDICTS
    assert found["current"] == "train.py"
    assert not (tmp_path / "net.pt").exists()  # nothing after the loop ran
    tried = {t["label"] for t in found["tried"]}
    assert tried >= {found["current"]}
    for gain in found["gains"]:
        assert gain["pairs"] >= 6
    if found["verdict"] == "change":
        (words,) = (line for line in found["code"].splitlines() if "num_workers=" in line)
        ast.parse(f"DataLoader(pictures, {words})")
    assert (tmp_path / "tune" / "tune.json").exists()
