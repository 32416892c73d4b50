"""What must hold whatever fault strikes: the same checks for every row of the table.

- The command ends, with a documented status, and where that is not 0 with one plain line.
- Nothing is left: no process, no file in TMPDIR, /tmp or /dev/shm, no mount, container or control
  group.
- What was finished stays as it is, byte for byte, and every stored file can be read.
- What the line says to do works: that command, once the fault is cured, ends with status 0 and
  completes the same plan.
"""

from __future__ import annotations

import collections
import contextlib
import csv
import ctypes
import dataclasses
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.fault_scene import IOBENCH, Ended, Scene, line_of
from iobench.host import locks

#: What has to end by itself gets this time.
GRACE_S = 5.0
#: Words of the language and of libraries, which no user is shown.
ALIEN = re.compile(
    r"Traceback|Exception ignored|Fatal Python error|File \"[^\"]*\", line|object at 0x|"
    r"Segmentation fault|core dumped|\[Errno|pydantic|ResourceWarning|RuntimeError|not caught"
)
#: Another line of iobench's own, which says what is waited for.
_WAITING = re.compile(r"the filesystem at \S+ (\(\S+\) has not answered|answers again)")
_COMMAND = re.compile(r"`(iobench run --resume[^`]*)`")
_PR_SET_CHILD_SUBREAPER = 36


@dataclasses.dataclass(frozen=True)
class Around:
    """What is on the machine beside the processes: compared before and after."""

    names: frozenset[str]

    @classmethod
    def now(cls, *, private: bool, containers: bool) -> Around:
        """Look.  ``private``: /tmp and /dev/shm are this benchmark's alone."""
        names = {f"container {name}" for name in (_containers() if containers else ())}
        names |= {f"mount {line.split()[4]}" for line in _lines("/proc/self/mountinfo")}
        for folder in ("/tmp", "/dev/shm") if private else ():
            found = {str(p) for p in Path(folder).iterdir()}
            names |= found
        names |= {f"control group {p}" for p in _groups()}
        return cls(frozenset(names))


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _groups() -> Iterator[Path]:
    """Yield control groups of trials that have no process."""
    for folder in Path("/sys/fs/cgroup").rglob("iobench-" + "[0-9a-f]" * 12):
        with contextlib.suppress(OSError):
            if not (folder / "cgroup.procs").read_text():
                yield folder


def _containers() -> Iterator[str]:
    asked = ["ps", "--all", "--format", "{{.Names}}", "--filter", "name=iobench-"]
    for program in filter(shutil.which, ("podman", "docker")):
        done = subprocess.run([program, *asked], capture_output=True, text=True, check=False)
        yield from done.stdout.split()


def adopt_orphans() -> None:
    """Let every process that loses its parent become this one's child, so that none is missed."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def running() -> frozenset[int]:
    """Return the processes below this one."""
    return frozenset(p.pid for p in _descendants())


def left_running(before: frozenset[int]) -> list[str]:
    """Return what still runs, or is stopped, of all that was started; end it.

    ``before``: processes that ran already, such as a daemon.
    """

    def new() -> list[psutil.Process]:
        return [p for p in _descendants() if p.pid not in before]

    end = time.perf_counter() + GRACE_S
    while (found := new()) and time.perf_counter() < end:
        time.sleep(0.02)
    lines = [f"{p.status()} process {line_of(p)[:150]}" for p in found if p.is_running()]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    while new():
        time.sleep(0.02)
    return lines


def _descendants() -> list[psutil.Process]:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    found = psutil.Process().children(recursive=True)
    return [p for p in found if _state(p) not in ("", psutil.STATUS_ZOMBIE)]


def _state(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.Error:
        return ""


def left_lying(before: Around, **where: bool) -> list[str]:
    """Return what lies about that was not there before."""
    end = time.perf_counter() + GRACE_S
    while (new := Around.now(**where).names - before.names) and time.perf_counter() < end:
        time.sleep(0.2)
    return [f"left: {name}" for name in sorted(new)]


def left_in(folder: Path) -> list[str]:
    """Return what lies in a folder for temporary files."""
    return [f"left in TMPDIR: {p.name}" for p in sorted(folder.glob("*"))]


def message(ended: Ended) -> str:
    """Return the last line that iobench itself says, without its name."""
    lines = [x for x in ended.stderr.splitlines() if x.startswith("iobench: ")]
    return lines[-1].removeprefix("iobench: ") if lines else ""


def told(ended: Ended, statuses: frozenset[int], says: str, *, heard: bool) -> Iterator[str]:
    """Yield what is wrong with status and words.  ``heard``: standard error could be read."""
    if ended.status is None:
        yield "it hung"
        return
    if ended.status not in statuses:
        yield f"status {ended.status}, not {' or '.join(map(str, sorted(statuses)))}"
    both = ended.stdout + ended.stderr
    if alien := ALIEN.search(both):
        yield f"alien words: {both[alien.start() :][:1000]}"
    own = [x for x in ended.stderr.splitlines() if x.startswith("iobench: ")]
    own = [x for x in own if not _WAITING.search(x)]
    if ended.status > 0 and heard:
        if len(own) != 1:
            yield f"{len(own)} lines of iobench's, not 1: {ended.stderr.strip()[-300:]!r}"
        if own and ended.stderr.strip().splitlines()[-1] != own[-1]:
            yield f"its line is not the last: {ended.stderr.strip()[-300:]!r}"
        if not re.search(says, message(ended)):
            yield f"its line has no {says!r}"


def digests(suite: Path | None) -> dict[str, str]:
    """Return file name -> digest of every finished record."""
    files = sorted((suite / "runs").glob("*.json")) if suite else []
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def consistent(suite: Path | None) -> Iterator[str]:
    """Yield what of a suite's folder cannot be read."""
    if suite is None:
        return
    stored = [suite / "plan.json", *(suite / "runs").glob("*.json")]
    for path in (*stored, *suite.glob("analysis.json")):
        if not _parses(path):
            yield f"{path.name} is not JSON"


def _parses(path: Path) -> bool:
    try:
        json.loads(path.read_text())
    except ValueError:
        return False
    return True


def planned(state: Path | None) -> list[str]:
    """Return the ids of the trials that the latest suite of a state has."""
    assert state is not None
    suite = state / "results" / "latest"
    return [t["id"] for t in json.loads((suite / "plan.json").read_text())["trials"]]


def complete(scene: Scene, plan: list[str]) -> Iterator[str]:
    """Yield what a finished suite lacks; ``plan``: the trials of one that met no fault."""
    if scene.suite is None:
        yield "there is no suite"
        return
    if (found := planned(scene.root)) != plan:
        yield f"another plan: {found}"
    analysis = json.loads((scene.suite / "analysis.json").read_text())
    if not analysis["complete"] or analysis["missing"]:
        yield f"incomplete: {analysis['missing'] or ''}"
    with open(scene.suite / "trials.csv", newline="") as file:
        last = {row["trial"]: row["status"] for row in csv.DictReader(file)}
    if bad := [t for t in plan if last.get(t) not in ("VALID", "EXPLORATORY")]:
        yield f"no usable record of {bad}"
    records = [json.loads(p.read_text()) for p in (scene.suite / "runs").glob("*.json")]
    usable = collections.Counter(r["trial"]["id"] for r in records if r["status"] == "VALID")
    if doubled := [t for t, n in usable.items() if n > 1 and "-ladder-" in t]:
        yield f"measured again: {doubled}"
    for folder in (scene.suite, scene.suite / "runs", scene.results):
        yield from (f"left in results: {p.name}" for p in folder.glob(".*") if p.name != locks.NAME)
    for folder in scene.out.glob("data/*"):
        names = {p.name for p in folder.iterdir()} - {locks.NAME}
        if odd := {n for n in names if n.endswith((".partial", ".tmp")) or n.startswith(".")}:
            yield f"left in the data: {sorted(odd)}"


def remedy(ended: Ended, scene: Scene, command: str) -> tuple[str, ...]:
    """Return the command that goes on: the one that the line names, else as docs say.

    After a kill, or the end of an incomplete suite, that is ``--resume`` where a suite has been
    planned, else the same command.
    """
    if found := _COMMAND.search(message(ended)):
        return (IOBENCH, *shlex.split(found[1])[1:])
    silent = ended.status is not None and ended.status <= 0
    return scene.words("resume" if silent and scene.suite else command)


def blamed(number: int | None) -> str:
    """Return a status as people know it."""
    if number is not None and number < 0:
        return signal.Signals(-number).name
    return "hung" if number is None else str(number)
