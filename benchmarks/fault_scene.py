"""A small suite in a folder of its own: started, watched up to a moment, struck, ended.

A scene has the folders that a fault may meet (data, results, TMPDIR), the command's environment and
streams, and what the command left behind.  It judges nothing (benchmarks/fault_invariants.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.throttle import loop_device, system, unmount

#: The command as users start it.
IOBENCH = str(Path(sys.executable).with_name("iobench"))
#: Images of the containers, for the suites that run in some.
IMAGES = Path(__file__).resolve().parent.parent / "images"
#: Of a small disk, whenever it is mounted: a resumed suite wants the same.
OPTIONS = "noatime"
#: A command that has not ended by then hangs.
LIMIT_S = 90.0
SAMPLES = 64
SPEC = """
name = "faults"
budget = "60s"
limit_s = 30
max_repeated_pairs = 0
[dataset]
recipe = "smoke"
samples = 64
[case]
trainer = "null"
transform = "rrc224"
batch = 4
workers = 1
{case}
[matrix]
pipeline = ["{loader}:jpeg", "{loader}:lmdb"]
[ladder]
stages = ["load"]
repeats = 1
probe = false
digest = {digest}
only = {{ pipeline = ["{loader}:lmdb"] }}
[[contrasts]]
base = "{loader}:jpeg"
pairs = 1
caches = ["warm"]
loop_s = 0.5
"""


@dataclasses.dataclass(frozen=True)
class Moment:
    """When a fault strikes: the state that it begins from, the command, and what is seen then."""

    begin: str
    command: str
    seen: Callable[[Scene], bool] | None = None
    #: Seconds after it was seen, at most; drawn for each row.
    after_s: float = 0.0
    #: Seconds between two looks; looking for processes takes 10 ms of a core.
    look_s: float = 0.001


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended.  ``status`` None: it hung, and was killed."""

    status: int | None
    stdout: str
    stderr: str
    words: tuple[str, ...]
    struck: bool = True


class Disk:
    """A small ext4 of its own below one folder, which can fill up, turn read-only or vanish."""

    def __init__(self, loop: str, path: Path) -> None:
        self._loop, self.path = loop, path

    def fill(self) -> None:
        """Leave no byte free."""
        with open(self.path / "ballast", "wb", buffering=0) as file, contextlib.suppress(OSError):
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"\1" * size) == size:
                        pass

    def fail(self) -> None:
        """Turn read-only, files that are open for writing too, as ext4 does after an error."""
        subprocess.run(["mount", "-o", "remount,abort", str(self.path)], check=False)

    def vanish(self) -> None:
        """Be gone from the folder, which stays."""
        system("umount", "--lazy", str(self.path))

    def mend(self) -> None:
        """Be there again, writable and with room, with what was written."""
        while os.path.ismount(self.path):
            self.vanish()
        time.sleep(0.2)
        system("fsck.ext4", "-y", self._loop, accept=(0, 1, 2))
        system("mount", "-o", OPTIONS, self._loop, str(self.path))
        (self.path / "ballast").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (self.path / "lost+found").rmdir()  # fsck makes it again


class Scene:
    """One row's folders and command."""

    def __init__(self, root: Path, spec: str, draw: random.Random) -> None:
        self.root, self.draw = root, draw
        self.out, self.results, self.tmp = root / "out", root / "results", root / "tmp"
        self.spec = root / "faults.toml"
        self.env = {**os.environ, "TMPDIR": str(self.tmp)}
        self.cwd = root
        #: Shell words before the command.
        self.prelude = ""
        #: Another iobench that a fault started, and its words.
        self.second: tuple[subprocess.Popen[bytes], tuple[str, ...]] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.disks: dict[Path, Disk] = {}
        self.fds: list[int] = []
        self.small_shm = False
        self.undo = contextlib.ExitStack()
        self._spec = spec

    def begin(self, state: Path | None) -> None:
        """Make the folders anew, as a copy of ``state``."""
        shutil.rmtree(self.root, ignore_errors=True)
        if state is None:
            for folder in (self.out, self.results, self.tmp):
                folder.mkdir(parents=True)
        else:
            shutil.copytree(state, self.root, symlinks=True)
        self.spec.write_text(self._spec)

    def disk(self, folder: Path, size: int = 24 << 20) -> Disk:
        """Put a small disk of its own below a folder, with what is in it."""
        image = self.root.with_name(f"{self.root.name}-{folder.name}.ext4")
        loop = self.undo.enter_context(loop_device(image, size))
        self.undo.callback(image.unlink)
        kept = folder.rename(folder.with_name(f"{folder.name}.kept"))
        folder.mkdir()
        system("mount", "-o", OPTIONS, loop, str(folder))
        self.undo.callback(unmount, folder)
        (folder / "lost+found").rmdir()
        shutil.copytree(kept, folder, symlinks=True, dirs_exist_ok=True)
        system("sync", "--file-system", str(folder))
        shutil.rmtree(kept)
        self.disks[folder] = Disk(loop, folder)
        return self.disks[folder]

    def words(self, command: str) -> tuple[str, ...]:
        """Return a command by its name."""
        results = ("--results", str(self.results))
        run = (IOBENCH, "run", "--images", str(IMAGES))
        return {
            "run": (*run, str(self.spec), "--out", str(self.out), *results),
            "resume": (*run, "--resume", *results),
            "report": (IOBENCH, "report", str(self.results)),
        }[command]

    def start(self, words: tuple[str, ...], name: str = "first") -> subprocess.Popen[bytes]:
        """Start a command with the scene's environment, prelude and streams."""
        shell = ("/bin/sh", "-c", f'{self.prelude}\nexec "$@"', "sh", *words)
        with (
            open(self.log(name, "out"), "wb") as out,
            open(self.log(name, "err"), "wb") as err,
        ):
            return subprocess.Popen(
                shell, cwd=self.cwd, env=self.env, stdin=subprocess.DEVNULL, stdout=out,
                stderr=err, start_new_session=True,
            )  # fmt: skip

    def log(self, name: str, stream: str) -> Path:
        """Return the file that a command's stream goes to, outside of what may fill or vanish."""
        return self.root.with_name(f"{self.root.name}.{name}.{stream}")

    def ended(self, process: subprocess.Popen[bytes], words: tuple[str, ...], name: str) -> Ended:
        """Wait for a command's end; kill one that hangs."""
        try:
            status: int | None = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            status = None
            for each in family(process.pid):
                with contextlib.suppress(psutil.Error):
                    each.kill()
            process.wait()
        out, err = (self.log(name, s).read_text(errors="replace") for s in ("out", "err"))
        return Ended(status, out, err, words)

    def run(
        self,
        command: str,
        moment: Moment | None = None,
        strike: Callable[[Scene], object] | None = None,
    ) -> Ended:
        """Run a command to its end; strike when the moment is seen."""
        words = self.words(command)
        self.process = self.start(words)
        struck = self._struck(moment, strike) if moment and moment.seen and strike else True
        return dataclasses.replace(self.ended(self.process, words, "first"), struck=struck)

    def _struck(self, moment: Moment, strike: Callable[[Scene], object]) -> bool:
        assert self.process is not None
        assert moment.seen is not None
        end = time.perf_counter() + LIMIT_S
        while not moment.seen(self):
            if self.process.poll() is not None or time.perf_counter() > end:
                return False
            time.sleep(moment.look_s)
        time.sleep(self.draw.uniform(0, moment.after_s))
        if self.process.poll() is not None:
            return False
        strike(self)
        return True

    # -- what is seen from outside ----------------------------------------------------------------

    @property
    def suite(self) -> Path | None:
        """The folder of the suite, once it is planned."""
        folder = self.results / "latest"
        return folder.resolve() if (folder / "plan.json").exists() else None

    def trial(self) -> str:
        """Return the trial that began last, "" for none."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            lines = (self.results / "latest" / "journal.jsonl").read_text().splitlines()
            return str(json.loads(lines[-1])["trial"])
        return ""

    def workers(self) -> list[psutil.Process]:
        """Return the processes of ranks that run now, or are stopped."""
        assert self.process is not None
        own = [p for p in family(self.process.pid) if "iobench.worker" in line_of(p)]
        # Clients, which are no parents of their ranks.
        clients = [p for p in own if line_of(p).startswith(("podman ", "docker "))]
        return self._in_containers() if clients else own

    def _in_containers(self) -> list[psutil.Process]:
        """Return ranks that see a folder of this scene mounted."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                mounts = Path(f"/proc/{process.pid}/mountinfo").read_text()
                line = line_of(process)
                if (
                    "iobench.worker" in line
                    and "python" in line.split()[0]
                    and str(self.root) in mounts
                ):
                    found.append(process)
        return found


def family(pid: int) -> list[psutil.Process]:
    """Return a process and those that it started."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def line_of(process: psutil.Process) -> str:
    """Return a process's command line."""
    try:
        return shlex.join(process.cmdline()) or f"[{process.name()}]"
    except psutil.Error:
        return ""


def measuring(cache: str) -> Callable[[Scene], bool]:
    """See a trial of the ladder in this cache state whose rank has started."""

    def seen(scene: Scene) -> bool:
        trial = scene.trial()
        return "-ladder-load-" in trial and f"-{cache}-" in trial and bool(scene.workers())

    return seen


def in_turns(scene: Scene) -> bool:
    """See two arms of a block, one of them stopped."""
    if "-ladder-" in (scene.trial() or "-ladder-"):
        return False
    with contextlib.suppress(psutil.Error):
        states = [p.status() for p in scene.workers()]
        return len(states) > 1 and psutil.STATUS_STOPPED in states
    return False


def preparing(scene: Scene) -> bool:
    """See samples being made."""
    return any(scene.out.glob("data/*/.parts"))


def converting(scene: Scene) -> bool:
    """See a stored form being written."""
    return any(scene.out.glob("data/*/lmdb.partial"))


def answering(scene: Scene) -> bool:
    """See that the command's own code has begun: it handles SIGTERM, and imports its modules."""
    assert scene.process is not None
    with contextlib.suppress(OSError, IndexError):
        status = Path(f"/proc/{scene.process.pid}/status").read_text()
        return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def reporting(scene: Scene) -> bool:
    """See the first of the report's files."""
    return (scene.results / "latest" / "trials.csv").exists()


#: Moments at which something happens.
MOMENTS = {
    "start": Moment("nothing", "run", answering, 0.8),
    "preparing": Moment("nothing", "run", preparing, 0.05),
    "converting": Moment("nothing", "run", converting),
    "cold": Moment("data", "run", measuring("cold"), 1.0, 0.05),
    "warm": Moment("data", "run", measuring("warm"), 1.0, 0.05),
    "turns": Moment("half", "resume", in_turns, 0.5, 0.05),
    "first turns": Moment("data", "run", in_turns, 0.5, 0.05),
    "reporting": Moment("half", "resume", reporting, 0.01),
}
#: Commands that run as a whole under what is there before.
WHOLE = {
    "run": Moment("nothing", "run"),
    "measure": Moment("data", "run"),
    "resume": Moment("half", "resume"),
    "report": Moment("finished", "report"),
}


def states(folder: Path, scene: Scene) -> dict[str, Path | None]:
    """Make what moments begin from, once: data, half a suite (killed in turns), a finished one.

    ``scene``: at the place of those that begin from them, for a plan holds absolute paths.
    """
    scene.begin(None)
    words = (IOBENCH, "data", "prepare", str(scene.spec), "--out", str(scene.out))
    done = scene.ended(scene.start(words), words, "first")
    if done.status:
        raise SystemExit(f"no data could be made: {done.stderr}")
    made: dict[str, Path | None] = {"nothing": None, "data": _kept(scene, folder / "data")}
    for _ in range(3):  # on a busy machine a block can pass unseen
        scene.begin(made["data"])
        killed = scene.run("run", Moment("data", "run", in_turns), kill)
        if killed.struck:
            break
    else:
        raise SystemExit(f"the suite did not come to its block: {killed.stderr}")
    time.sleep(1)
    for left in scene.tmp.iterdir():
        shutil.rmtree(left)
    made["half"] = _kept(scene, folder / "half")
    done = scene.run("resume")
    if done.status:
        raise SystemExit(f"the suite cannot be finished: {done.stderr}")
    made["finished"] = _kept(scene, folder / "finished")
    return made


def _kept(scene: Scene, folder: Path) -> Path:
    return Path(shutil.copytree(scene.root, folder, symlinks=True))


def kill(scene: Scene) -> None:
    """Kill the driver."""
    assert scene.process is not None
    scene.process.kill()
