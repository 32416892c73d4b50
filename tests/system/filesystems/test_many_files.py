"""What files cost on a mount: slow opens are told from slow bytes, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

import pytest

from iobench.analysis.evidence import evidence
from iobench.analysis.metadata import metadata_of
from iobench.analysis.storage import storage_of
from iobench.analysis.storage_results import MetadataResult, StorageResult
from iobench.core.cases import Case, Dataset, Plan, Trial
from iobench.core.records import VALID
from iobench.data import make
from iobench.run import requests
from iobench.run.trial import TrialSettings, run_trial
from tests.build.gluster import Gluster, gluster
from tests.build.servers import Evicting
from tests.capabilities import need

pytestmark = pytest.mark.slow
SAMPLES = 48
SPEC = """
name = "files"
budget = "60s"
[dataset]
recipe = "smoke"
samples = 64
[case]
trainer = "null"
batch = 8
workers = 1
pipeline = "threads:jpeg"
[ladder]
stages = ["metadata"]
repeats = 1
probe = false
digest = false
"""
IOBENCH = (sys.executable, "-m", "iobench.cli")


@pytest.fixture
def disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as name:
        yield Path(name)


def measured(
    data: Dataset, settings: TrialSettings, *more: str
) -> Tuple[MetadataResult, Optional[StorageResult]]:
    """Run the two stages, and ``more``; all are VALID."""
    case = Case(
        label="c", format="jpeg", loader="threads", trainer="null", location=data.root, batch=4,
        workers=12,
    )  # fmt: skip
    trials = (
        Trial("metadata", case, "metadata", "-"),
        *(Trial(stage, case, stage, "cold") for stage in ("files", *more)),
    )
    records = [run_trial(trial, data, 1, settings) for trial in trials]
    assert {(r.status, r.reasons) for r in records} == {(VALID, ())}
    all_of = evidence(Plan("f", "", 1, 1.0, data, (case,), trials), records)
    found = metadata_of(all_of, case)
    assert found is not None
    assert not list(Path(data.root).parent.glob("iobench-placed-*"))
    return found, storage_of(all_of, case)


def made(volume: Gluster) -> Dataset:
    volume.set("performance.quick-read", "off")
    volume.set("performance.open-behind", "off")
    return make.make("smoke", volume.mount / "set", samples=SAMPLES, seed=1)


@pytest.mark.breadth
def test_slow_opens_are_what_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers open one file after the other, and wait 20 ms before each."""
    need("gluster")
    need("fio")
    monkeypatch.setattr(requests, "POINT_MS", 200)
    monkeypatch.setattr(requests, "LARGEST_MS", 400)
    delay = {"delay_gen__delay_percentage": "100", "delay_gen__delay_duration": "20000"}
    delay |= {"delay_gen__enable": "open", "performance__io_thread_count": "1"}
    with gluster(debug__delay_gen="posix", **delay) as volume:
        settings = TrialSettings(agent=Evicting(volume))
        found, mount = measured(made(volume), settings, "requests", "ceiling")
    alone = found.whole_files[0]
    assert alone.processes == 1
    assert alone.open_s.value > 0.02
    assert alone.share > 0.5
    assert "files bind, not bytes" in found.words
    assert all(rate.per_s["open"].value < 110 for rate in found.rates)  # two servers
    assert mount is not None
    assert mount.binding == "metadata"
    assert "the mount's metadata bind" in mount.words


@pytest.mark.breadth
def test_slow_bytes_are_what_binds() -> None:
    need("gluster")
    need("blkio")
    with gluster() as volume:
        data = made(volume)
        with volume.throttled(read_bps_device=1_000_000):
            found, _ = measured(data, TrialSettings(agent=Evicting(volume)))
    assert all(whole.share < 0.5 for whole in found.whole_files)
    assert "its bytes bind, not the files" in found.words
    assert found.whole_files[-1].bytes_per_s < 2e6


def left(folder: Path) -> List[Path]:
    return list(folder.rglob("iobench-placed-*"))


def started(disk: Path, results: str) -> subprocess.Popen[bytes]:
    """Start the suite; return when files are created beside the data."""
    (disk / "files.toml").write_text(SPEC)
    words = ["run", str(disk / "files.toml"), "--out", str(disk / "out"), "--results", results]
    said = disk / "said"
    with open(said, "wb") as file:
        process = subprocess.Popen(
            [*IOBENCH, *words], cwd=disk, env=env(disk), start_new_session=True, stdout=file,
            stderr=file,
        )  # fmt: skip
    for _ in range(600):
        if any(len(list(folder.iterdir())) > 1000 for folder in left(disk)):
            return process
        assert process.poll() is None, said.read_text()
        time.sleep(0.05)
    raise AssertionError("no files were created")


def env(disk: Path) -> Dict[str, str]:
    (disk / "tmp").mkdir(exist_ok=True)
    return {**os.environ, "TMPDIR": str(disk / "tmp")}


def workers(disk: Path) -> List[int]:
    """Return the processes that have the folder in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = path.joinpath("cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(disk) in line and "iobench.worker" in line:
            found.append(int(path.name))
    return found


def test_an_interrupted_suite_removes_its_files(disk: Path) -> None:
    process = started(disk, "results")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert not left(disk)
    assert not workers(disk)


def test_what_a_killed_suite_left_is_removed_by_the_next(disk: Path) -> None:
    process = started(disk, "results")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    for _ in range(100):
        if not workers(disk):
            break
        time.sleep(0.1)
    assert not workers(disk)
    assert left(disk)
    words = ["run", "--resume", "--results", "results"]
    again = subprocess.run(
        [*IOBENCH, *words], cwd=disk, env=env(disk), capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "which a suite that was killed left" in again.stderr
    assert not left(disk)
