"""A suite on a mount that its tables show as Lustre: what a client prints drives all of it.

No client of Lustre can be had everywhere, so the disk is ext4 on a loop device; the mount table,
`lfs`, `lctl` and llite's folder are written.  The bytes are real: `lctl` says of the targets what
the loop device has really delivered.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest

from iobench.core.records import VALID
from iobench.host import mounts
from tests.build.disks import disk
from tests.capabilities import need

pytestmark = pytest.mark.slow

OUTPUTS = Path(__file__).parents[2] / "unit/backends/filesystem_outputs"
LFS = """#!/bin/sh
case "$1" in
getstripe) exec cat {outputs}/lustre.getstripe-plain.yaml ;;
df) exec cat {outputs}/lustre.df ;;
*) exit 2 ;;
esac
"""
#: The counters of one target; the others were never read.
LCTL = """#!/bin/sh
test "$1 $2 $3" = "get_param -n osc.work-*-osc-ffff8c4d.stats" || exit 2
set -- $(cat /sys/block/{loop}/stat)
echo "snapshot_time 1783960164.279418700 secs.nsecs"
echo "read_bytes $1 samples [bytes] 4096 1048576 $(($3 * 512)) 0"
"""
SPEC = """
name = "shown"
budget = "1m"
[dataset]
recipe = "imagenet-like"
samples = 32
[case]
trainer = "null"
batch = 8
workers = 1
[matrix]
pipeline = ["threads:jpeg"]
[ladder]
stages = ["read", "ceiling"]
repeats = 1
"""
#: The command, in a process that is shown other tables.
RUN = """
import sys
from pathlib import Path
from iobench.backends.filesystems import lustre
from iobench.host import mounts
mounts.MOUNTINFO, lustre.TREES = Path(sys.argv[1]), (Path(sys.argv[2]),)
from iobench.cli.run import run
sys.exit(run(sys.argv[3:], standalone_mode=False))
"""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """The records of a suite whose data are on the disk."""
    for name in ("root", "loop", "fio"):
        need(name)
    folder = tmp_path_factory.mktemp("lustre")
    with disk(folder / "image", folder / "scratch", 128 << 20) as loop:
        shown(folder, loop)
        (folder / "spec.toml").write_text(SPEC)
        words = [str(folder / name) for name in ("mountinfo", "proc", "spec.toml")]
        places = ["--out", str(folder / "scratch"), "--results", str(folder / "results")]
        env = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
        command = [sys.executable, "-c", RUN, *words, *places]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        runs = sorted((folder / "results").glob("*/runs/*.json"))
        assert runs, done.stdout + done.stderr
        yield [json.loads(path.read_text()) for path in runs]


def shown(folder: Path, loop: str) -> None:
    """Write the mount table, the programs and the client's folder."""
    point = str(folder / "scratch")
    table = mounts.MOUNTINFO.read_text().splitlines()
    (own,) = (line for line in table if line.split()[4] == point)
    as_lustre = own.split(" - ")[0] + " - lustre 10.0.0.1@tcp:/work rw,flock,lazystatfs"
    as_lustre = as_lustre.replace(f" {own.split()[2]} ", " 0:99 ", 1)
    table[table.index(own)] = as_lustre
    (folder / "mountinfo").write_text("\n".join(table) + "\n")
    parameter = folder / "proc/llite/work-ffff8c4d/max_read_ahead_mb"
    parameter.parent.mkdir(parents=True)
    parameter.write_text("64\n")
    (folder / "bin").mkdir()
    for name, text in (("lfs", LFS), ("lctl", LCTL)):
        program = folder / "bin" / name
        program.write_text(text.replace("{outputs}", str(OUTPUTS)).replace("{loop}", loop[5:]))
        program.chmod(0o755)


def test_every_record_describes_the_mount(records: list[dict[str, Any]]) -> None:
    for record in records:
        mount = record["mount"]
        assert (mount["filesystem"], mount["fstype"]) == ("lustre", "lustre")
        assert mount["detected"] == "the mount table; statfs(2) says 0xef53"  # a contradiction
        assert (mount["stripe_count"], mount["osts_of_file"]) == (2, 2)
        assert mount["ost_fullest_percent"] == 84
        assert mount["llite_max_read_ahead_mb"] == "64"
        assert mount["locks"] == "shared by all clients"


@pytest.mark.parametrize("stage", ["read", "ceiling"])
def test_cold_is_proven_by_what_the_targets_sent(records: list[dict[str, Any]], stage: str) -> None:
    found = [r for r in records if (r["trial"]["stage"], r["trial"]["cache"]) == (stage, "cold")]
    assert found
    cache = found[-1]["cache"]
    assert (found[-1]["status"], found[-1]["reasons"]) == (VALID, [])
    assert "osc.*.stats" in cache["counter"]
    assert cache["others_bytes"] is not None
    assert 0.98 < cache["bytes_storage"] / cache["bytes_needed"] < 1.1


def test_warm_moves_nothing_over_the_mount(records: list[dict[str, Any]]) -> None:
    (found, *_) = [r for r in records if r["trial"]["cache"] == "warm"][::-1]
    assert (found["status"], found["reasons"]) == (VALID, [])
    assert (
        found["notes"]["mount_bytes"]["targets_read_bytes"] < 0.01 * found["cache"]["bytes_needed"]
    )
