"""A suite on a mount that its tables show as Lustre: what a client prints drives all of it.

No client of Lustre can be had everywhere, so the disk is ext4 on a loop device; the mount table,
`lfs`, `lctl` and llite's folder are written.  The bytes are real: `lctl` says of the targets what
the loop device has really delivered.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator, List, NamedTuple

import pytest

from iobench.core.records import VALID
from tests.build.disks import disk
from tests.build.lustre import RUN, environment, shown
from tests.capabilities import need

pytestmark = pytest.mark.breadth

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
striping = [{}, { count = 1 }, { count = 2, bytes = 4194304 }, { count = 4 }, { pool = "none" }]
[ladder]
stages = ["read", "ceiling"]
repeats = 1
"""


class Ran(NamedTuple):
    folder: Path
    done: subprocess.CompletedProcess[str]
    records: List[Any]

    def of(self, **striping: object) -> List[Any]:
        """Return the records of one striping."""
        return [r for r in self.records if r["trial"]["case"]["striping"] == striping]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    for name in ("root", "loop", "fio"):
        need(name)
    folder = tmp_path_factory.mktemp("lustre")
    with disk(folder / "image", folder / "scratch", 128 << 20) as loop:
        shown(folder, folder / "scratch", loop)
        yield folder


def run_on(folder: Path, spec: str, results: str) -> Ran:
    """Run a suite whose data are on the disk."""
    (folder / "spec.toml").write_text(spec)
    words = [str(folder / name) for name in ("mountinfo", "proc", "spec.toml")]
    places = ["--out", str(folder / "scratch"), "--results", str(folder / results)]
    command = [sys.executable, "-c", RUN, *words, *places]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(folder), check=False
    )
    runs = sorted((folder / results).glob("*/runs/*.json"))
    return Ran(folder, done, [json.loads(path.read_text()) for path in runs])


@pytest.fixture(scope="module")
def ran(client: Path) -> Ran:
    found = run_on(client, SPEC, "results")
    assert found.records, found.done.stdout + found.done.stderr
    return found


def test_every_record_describes_the_mount(ran: Ran) -> None:
    for record in ran.of():
        mount = record["mount"]
        assert (mount["filesystem"], mount["fstype"]) == ("lustre", "lustre")
        assert mount["detected"] == "the mount table; statfs(2) says 0xef53"  # a contradiction
        assert (mount["stripe_count"], mount["osts_of_file"]) == (2, 2)
        assert mount["ost_fullest_percent"] == 84
        assert mount["llite_max_read_ahead_mb"] == "64"
        assert mount["locks"] == "shared by all clients"


@pytest.mark.parametrize("stage", ["read", "ceiling"])
@pytest.mark.parametrize("striping", [{}, {"count": 1}, {"count": 2, "bytes": 4 << 20}])
def test_cold_is_proven_by_what_the_targets_sent(
    ran: Ran, stage: str, striping: dict[str, int]
) -> None:
    every = ran.of(**striping)
    found = [r for r in every if (r["trial"]["stage"], r["trial"]["cache"]) == (stage, "cold")]
    assert found
    cache = found[-1]["cache"]
    assert (found[-1]["status"], found[-1]["reasons"]) == (VALID, [])
    assert "osc.*.stats" in cache["counter"]
    assert cache["others_bytes"] is not None
    assert 0.98 < cache["bytes_storage"] / cache["bytes_needed"] < 1.1


def test_warm_moves_nothing_over_the_mount(ran: Ran) -> None:
    (found, *_) = [r for r in ran.of() if r["trial"]["cache"] == "warm"][::-1]
    assert (found["status"], found["reasons"]) == (VALID, [])
    assert (
        found["notes"]["mount_bytes"]["targets_read_bytes"] < 0.01 * found["cache"]["bytes_needed"]
    )


def test_each_striping_has_a_copy_of_the_data_with_it(ran: Ran) -> None:
    (data,) = (ran.folder / "scratch/data").iterdir()
    forms = {path.parent.name: json.loads(path.read_text()) for path in data.glob("*/format.json")}
    assert sorted(forms) == [
        "jpeg+stripe_bytes-4194304+stripe_count-2", "jpeg+stripe_count-1", "jpeg+stripe_count-4",
    ]  # fmt: skip
    wide = forms["jpeg+stripe_bytes-4194304+stripe_count-2"]
    assert wide["striping"] == {"count": 2, "bytes": 4 << 20}
    assert wide["striping_found"] == {"count": 2, "bytes": 4 << 20, "pool": ""}
    for path in (data / "jpeg").rglob("*.jpg"):
        copy = data / "jpeg+stripe_count-1" / path.relative_to(data / "jpeg")
        assert copy.read_bytes() == path.read_bytes()
    assert not list(data.glob("*.partial"))
    assert not list(data.parent.glob(".iobench*"))


def test_records_have_what_was_set(ran: Ran) -> None:
    for striping in ({"count": 1}, {"count": 2, "bytes": 4 << 20}):
        for record in ran.of(**striping):
            assert record["mount"]["stripe_count"] == striping["count"]
            assert record["mount"]["osts_of_file"] == striping["count"]
            assert record["mount"]["stripe_size"] == striping.get("bytes", 1 << 20)


def test_what_differs_and_what_is_left_out_is_said(ran: Ran) -> None:
    plan = json.loads(next(ran.folder.glob("results/*/plan.json")).read_text())
    notes = " ".join(plan["notes"])
    assert "stripe_count-4: asked for were count = 4, and its largest file has count = 2" in notes
    assert "striping=pool:none: left out: striping (pool = 'none') is not possible" in notes
    assert "setstripe: cannot access pool" in notes
    report = ran.folder / "results/latest/report.html"
    assert "striping=count:2,bytes:4194304" in report.read_text()


def test_a_striping_that_is_not_possible_ends_before_data_are_made(client: Path) -> None:
    spec = SPEC.replace("samples = 32", "samples = 16").split("striping =")[0]
    spec = spec.replace("[case]", '[case]\nstriping = { pool = "none" }')
    before = list((client / "scratch/data").glob("*"))
    found = run_on(client, spec, "refused")
    assert found.done.returncode != 0
    assert "striping (pool = 'none') is not possible on lustre at" in found.done.stderr
    assert "cannot access pool" in found.done.stderr
    assert list((client / "scratch/data").glob("*")) == before
