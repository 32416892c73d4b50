"""A distributed filesystem that fails while a suite runs on it: one line, an end, results intact.

The results are elsewhere.  Nothing of ours is left, and what was finished before stays as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List, Set

import pytest

from tests.build.gluster import Gluster, gluster
from tests.build.rows import rows
from tests.capabilities import need

pytestmark = pytest.mark.slow
SPEC = """
name = "faults"
budget = "60s"
limit_s = 20
[dataset]
recipe = "smoke"
samples = 64
[case]
trainer = "null"
batch = 8
workers = 1
[matrix]
pipeline = ["threads:jpeg"]
[ladder]
stages = ["read"]
caches = ["cold"]
repeats = {repeats}
probe = false
digest = false
"""
#: Writes beside the data, in the round after the first.
WRITES = """
[[cases]]
pipeline = "threads:jpeg"
batch = 4
stages = ["metadata"]
repeats = 2
"""
#: What must have been said by then, seconds; how long it took is printed, and docs/filesystems.md
#: has what was found.
LATEST_S = 60.0
#: The command, with a shorter patience for a mount that is silent.
RUN = "from iobench.cli import watch; from iobench.cli.__main__ import main; "
IMPATIENT = "watch.SILENT_S = 12.0; "


class Run:
    """A suite of cold reads whose data are on the volume."""

    def __init__(self, folder: Path, volume: Gluster, *, words: str = "", more: str = "") -> None:
        self._folder, self.results = folder, folder / "results"
        self._struck = 0.0
        self.tmp = folder / "tmp"
        self.tmp.mkdir()
        spec = folder / "faults.toml"
        spec.write_text(SPEC.format(repeats=5) + more)
        out = volume.mount / "out"
        self._ask("data", "prepare", str(spec), "--out", str(out))
        given = ["run", str(spec), "--out", str(out), "--results", str(self.results)]
        script = f"{RUN}{words}import sys; sys.argv[0] = 'iobench'; sys.exit(main())"
        self._said = folder / "stderr"
        with open(folder / "stdout", "wb") as out, open(self._said, "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", script, *given], cwd=folder, env=self._env(),
                stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip

    def _env(self) -> Dict[str, str]:
        return {**os.environ, "TMPDIR": str(self.tmp)}

    def _ask(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "iobench.cli", *words], cwd=self._folder, env=self._env(),
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def records(self) -> Dict[str, bytes]:
        """Return the stored records by name."""
        return {p.name: p.read_bytes() for p in self.results.glob("latest/runs/*.json")}

    def until(self, count: int) -> Dict[str, bytes]:
        """Wait until so many records are stored, and one more trial has begun; return them."""
        for _ in range(600):
            if len(found := self.records()) >= count:
                time.sleep(0.7)
                return found
            assert self.process.poll() is None, self._said.read_text()
            time.sleep(0.1)
        raise AssertionError("no record was stored")

    def struck(self) -> None:
        """The fault is there from now on."""
        self._struck = time.monotonic()

    def said(self, what: str) -> None:
        """Something has been said: print how long it took since the fault."""
        seconds = time.monotonic() - self._struck
        sys.stdout.write(f"{what}: after {seconds:.1f} s\n")
        assert seconds < LATEST_S

    def says(self, words: str) -> None:
        """Wait until standard error has these words."""
        for _ in range(600):
            if words in self._said.read_text():
                return
            assert self.process.poll() is None, self._said.read_text()
            time.sleep(0.1)
        raise AssertionError(self._said.read_text())

    def fails(self, stage: str) -> str:
        """Wait for the first FAILED record of a stage; return its reason."""
        for _ in range(1200):
            for document in map(json.loads, self.records().values()):
                if document["trial"]["stage"] == stage and document["status"] == "FAILED":
                    return str(document["reasons"][0])
            time.sleep(0.1)
        raise AssertionError(f"no trial of {stage} FAILED")

    def ended(self, within_s: float) -> str:
        """Wait for the end; return standard error, whose last line says it all."""
        self.process.wait(within_s)
        stderr = self._said.read_text()
        assert "Traceback" not in stderr, stderr
        return stderr

    def intact(self, before: Dict[str, bytes]) -> None:
        """Check that what was stored before is as it was, and that the results can be shown."""
        assert {name: self.records().get(name) for name in before} == before
        assert "threads:jpeg" in self._ask("show", str(self.results))

    def left(self) -> List[str]:
        """Return the processes of this suite that there are, with their states."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = path.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode()
                if str(self._folder) in words and "gluster" not in words:
                    state = path.joinpath("stat").read_text().rpartition(")")[2].split()[0]
                    found.append(f"{state} {words}")
        return found

    def nothing_left(self) -> None:
        """Check that within seconds no process of the suite is left, in any state."""
        for _ in range(100):
            if not (left := self.left()):
                return
            time.sleep(0.1)
        raise AssertionError(left)


@pytest.fixture
def volume() -> Iterator[Gluster]:
    need("gluster")
    with gluster() as made:
        made.set("performance.quick-read", "off")
        yield made


def lost(run: Run) -> Set[str]:
    """Return the reasons of the records that cannot be used."""
    documents = [json.loads(text) for text in run.records().values()]
    return {d["reasons"][0] for d in documents if d["status"] in ("INVALID", "FAILED")}


def test_a_client_that_hangs_is_waited_for(volume: Gluster, tmp_path: Path) -> None:
    run = Run(tmp_path, volume)
    before = run.until(2)
    os.kill(volume.client, signal.SIGSTOP)
    run.struck()
    try:
        run.says(f"the filesystem at {volume.mount} (fuse.glusterfs) has not answered")
        run.said("a client that hangs is named")
    finally:
        os.kill(volume.client, signal.SIGCONT)
    assert "answers again" in run.ended(120)
    run.intact(before)
    run.nothing_left()


@pytest.mark.breadth
def test_a_client_that_hangs_for_good_is_given_up(volume: Gluster, tmp_path: Path) -> None:
    """The kernel holds who asked until the client goes on or is gone: then none is left."""
    run = Run(tmp_path, volume, words=IMPATIENT)
    before = run.until(2)
    os.kill(volume.client, signal.SIGSTOP)
    try:
        last = run.ended(90).strip().splitlines()[-1]
    finally:
        os.kill(volume.client, signal.SIGKILL)
    assert run.process.returncode == 2
    assert "a filesystem did not answer for 12 s; all that was finished is kept" in last
    run.nothing_left()
    run.intact(before)


def test_a_mount_that_disappears_fails_what_is_left(volume: Gluster, tmp_path: Path) -> None:
    run = Run(tmp_path, volume)
    before = run.until(2)
    os.kill(volume.client, signal.SIGKILL)
    run.struck()
    last = run.ended(90).strip().splitlines()[-1]
    run.said("a mount that has gone is named, and the command ends")
    assert run.process.returncode == 2
    assert str(volume.mount) in last
    assert "its filesystem has gone: have it mounted again; then go on with `iobench run" in last
    run.nothing_left()
    run.intact(before)


def test_a_lost_brick_fails_the_trials_that_need_it(volume: Gluster, tmp_path: Path) -> None:
    run = Run(tmp_path, volume)
    before = run.until(2)
    os.kill(volume.servers[0], signal.SIGKILL)
    run.ended(90)
    assert lost(run)  # the trials before have answered what was asked: the status may be 0
    assert all(
        re.search("No such file|not connected|Input/output error", reason) for reason in lost(run)
    )
    run.nothing_left()
    run.intact(before)


@pytest.mark.parametrize(
    ("fault", "words"),
    rows(
        [("read-only", "{}/.*: Read-only file system")],
        [("full", "No space left on device|no directory of files .* of the free space")],
    ),
)
def test_a_mount_that_cannot_be_written_is_read_on(
    volume: Gluster, tmp_path: Path, fault: str, words: str
) -> None:
    """Only the stage that writes is lost, and says why; it leaves no file behind."""
    run = Run(tmp_path, volume, more=WRITES)
    before = run.until(1)
    if fault == "full":
        volume.fill()
    else:
        volume.ask("volume", "set", "iobench-test", "features.read-only", "on")
    run.struck()
    reason = run.fails("metadata")
    run.said(f"stage metadata FAILED ({reason})")
    assert re.search(words.format(volume.mount), reason)
    run.ended(120)
    documents = [json.loads(text) for text in run.records().values()]
    reads = [d for d in documents if d["trial"]["stage"] == "read"]
    assert len(reads) == 5
    assert {d["status"] for d in reads} <= {"VALID", "EXPLORATORY"}
    assert "FAILED" in {d["status"] for d in documents if d["trial"]["stage"] == "metadata"}
    if fault == "full":
        assert not list((volume.mount / "out").rglob("iobench-placed-*"))
    run.nothing_left()
    run.intact(before)
