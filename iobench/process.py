"""A worker's process from the driver's side: started, told to go on, waited for, ended."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from iobench import inside, lifetime, limits, registry, starting, strace, world
from iobench.caffe import log as caffe_log
from iobench.errors import TrialFailed
from iobench.model import Dataset, Extent, Placement, RankResult, Task, Trial, to_json
from iobench.starting import ImageUse, Started
from iobench.timing import clock

_RANK: pydantic.TypeAdapter[RankResult] = pydantic.TypeAdapter(RankResult)
_POLL_S = 0.002
#: Seconds that a launcher gets to end its ranks and remove what it keeps of them.
_TERMINATE_S = 3.0
#: What most likely ended a process by these signals.
_LIKELY = {
    signal.SIGBUS: "a mapped file, such as an LMDB, was cut short? /dev/shm is full?",
    signal.SIGABRT: "a library's own check failed",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What every trial of a suite shares.

    ``enter``: words put before the worker's command (a benchmark joins a throttled cgroup by it;
    a daemon's containers are no children of it).  ``images``: name -> image, for the runtimes that
    need one (:func:`iobench.starting.images_for`).  ``placements``: by the location of the cases
    whose data were put somewhere.
    """

    limit_s: float = 120.0
    compute_s: float = 6.0
    allow_drop_caches: bool = False
    decode_delay_s: float = 0.0
    enter: Sequence[str] = ()
    images: Mapping[str, ImageUse] = dataclasses.field(default_factory=dict)
    placements: Mapping[str, Placement] = dataclasses.field(default_factory=dict)


class Worker:
    """A started worker: its process group, its folder and its deadline."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        work: Path,
        started: Started,
        trial: Trial,
        limit_s: float,
        begun: float,
        inside: bool,
    ) -> None:
        self.inside = inside
        self._process, self.work, self._started, self._trial = process, work, started, trial
        self._world_size = world.started(trial)
        self._begun = begun
        self._deadline = begun + limit_s
        self._limit_s = limit_s

    def wait_ready(self) -> float:
        """Wait until every rank has imported its libraries; return the seconds since the start.

        That is what the runtime, the interpreter and the imports took (2 ms resolution).
        """
        names = [f"ready.{rank}" for rank in range(self._world_size)]
        self._wait(lambda: all((self.work / name).exists() for name in names))
        return clock() - self._begun

    def prepared(self) -> list[dict[str, Any]]:
        """Have every rank bring the page cache into the trial's state; return what each found."""
        (self.work / "prepare").touch()
        paths = [self.work / f"prepared.{rank}" for rank in range(self._world_size)]
        self._wait(lambda: all(path.exists() for path in paths))
        if not all(path.exists() for path in paths):
            raise TrialFailed(self._why())
        return [json.loads(path.read_text()) for path in paths]

    def extents(self) -> list[list[Extent]]:
        """Return the extents of each sample, rank after rank in its order, in host paths."""
        self._check()
        paths = [self.work / f"extents.{rank}.json" for rank in range(self._world_size)]
        rows = [row for path in paths for row in json.loads(path.read_text())]
        return [[self._started.outside(Extent(*extent)) for extent in row] for row in rows]

    def processes(self) -> list[int]:
        """Return this machine's process id of every rank; [] where one is not seen from here."""
        self._check()
        inside = [int((self.work / f"pid.{r}").read_text()) for r in range(self._world_size)]
        return strace.processes(self._started.name, inside)

    def release(self) -> None:
        """Let the ranks begin."""
        (self.work / "go").touch()

    def results(self) -> tuple[RankResult, ...]:
        """Wait for the end and return each rank's result."""
        self._wait(lambda: False)
        results = self._written()
        if len(results) < self._world_size:
            raise TrialFailed(self._why())
        return tuple(results)

    def _check(self) -> None:
        """Raise TrialFailed where a rank ended with an error: it left nothing but that."""
        errors = world.errors(self._written())
        if errors:
            raise TrialFailed(errors[0])

    def _paths(self) -> list[Path]:
        return [self.work / f"result.{rank}.json" for rank in range(self._world_size)]

    def _written(self) -> list[RankResult]:
        texts = [path.read_text() for path in self._paths() if path.exists()]
        return [_RANK.validate_python(json.loads(text)) for text in texts]

    def _wait(self, done: Callable[[], bool]) -> None:
        """Return when ``done()`` or the process has ended; raise TrialFailed when time is up."""
        while not done():
            if self._process.poll() is not None:
                if not all(path.exists() for path in self._paths()):
                    raise TrialFailed(self._why())
                return
            if clock() > self._deadline:
                raise TrialFailed(
                    f"ran longer than limit_s = {self._limit_s:g}; raise it in the spec, or take "
                    "fewer samples"
                )
            time.sleep(_POLL_S)

    def _why(self) -> str:
        """Say in one line why there is no result: a rank's own error, else how it ended."""
        errors = world.errors(self._written())
        if errors:
            return errors[0]
        code, who = self._process.returncode, "worker"
        said = (self.work / "stderr").read_text(errors="replace")
        failed = registry.load("launchers", self._trial.case.launcher).failure(said)
        if failed is not None:
            code, who, said = failed.code, world.name(failed.rank, self._world_size), failed.said
        if reason := caffe_log.fatal(said):
            return reason if self._world_size == 1 else f"{who}: {reason}"
        text = said.strip().splitlines()
        last = f": {text[-1]}" if text else ""
        if code is not None and code > 128:  # a container's end, as its runtime tells it
            code = 128 - code
        if code is not None and code < 0 and -code in set(signal.Signals):
            likely = _LIKELY.get(signal.Signals(-code), "out of memory?")
            return f"{who} killed by {signal.Signals(-code).name} ({likely}){last}"
        return f"{who} ended with status {code} and no result{last}"


@contextlib.contextmanager
def worker_of(
    trial: Trial, dataset: Dataset, work: Path, settings: Settings, place: Placement | None
) -> Iterator[Worker]:
    """Start the trial's process; whatever happens, all that it started is gone afterwards.

    Its process group is killed.  What runs elsewhere, in a container, ends when its standard input
    closes (this process holds the other end, and loses it even by ``kill -9``), and the runtime is
    asked to stop it by its name.  A launcher's ranks hold the reading end of a FIFO instead.
    """
    case = trial.case
    on_host = trial.stage == "ceiling"  # looks where the samples lie, and measures nothing
    name = f"iobench-{secrets.token_hex(6)}"
    started = starting.start(
        case, dataset, work, settings.images, name=name, on_host=on_host, place=place,
        world_size=world.started(trial),
    )  # fmt: skip
    proven_inside = bool(place and place.inside and trial.cache != "-" and not on_host)
    if place and proven_inside:
        inside.check(trial.cache, place)
    task = Task(
        trial=trial,
        dataset=started.dataset,
        handshake=started.folder,
        result=f"{started.folder}/result",
        seconds=settings.compute_s if trial.stage in ("compute", "alone") else 0.0,
        decode_delay_s=settings.decode_delay_s,
        inside=proven_inside,
        ranks=world.started(trial),
    )
    (work / "task.json").write_text(json.dumps(to_json(task)))
    with contextlib.ExitStack() as undo:
        enter = list(settings.enter)
        if not on_host and registry.load("runtimes", case.runtime).limits is None:
            group = undo.enter_context(limits.group(case.cpus, case.memory_bytes, name))
            enter += group.prefix
        if started.ranks_apart:
            undo.callback(os.close, _held(work / lifetime.FIFO))
        stderr = undo.enter_context(open(work / "stderr", "wb"))
        begun = clock()
        process = subprocess.Popen(
            [*enter, *started.argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, **started.variables},
            start_new_session=True,
            # conmon leaves a file "oom" where podman was started
            cwd=work if registry.load("runtimes", case.runtime).isolated else None,
        )
        undo.callback(_end, process, started)
        yield Worker(process, work, started, trial, settings.limit_s, begun, proven_inside)


def _held(path: Path) -> int:
    """Make the FIFO by which ranks see that this process lives, and open it."""
    try:
        os.mkfifo(path)
        return os.open(path, os.O_RDWR)
    except OSError as error:
        raise TrialFailed(
            f"no FIFO can be made in {path.parent} ({error.strerror}): set TMPDIR to a folder on a "
            "local disk"
        ) from None


def _end(process: subprocess.Popen[bytes], started: Started) -> None:
    """Kill a worker's process group and what its runtime started by its name."""
    if started.ranks_apart and process.poll() is None:
        process.terminate()  # it ends its ranks, and removes its folder and its shared memory
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TERMINATE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for member in _session(process.pid) if started.ranks_apart else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    started.runtime.stop(started.name)


def _session(leader: int) -> list[int]:
    """Return the processes of a session that was started with ``leader``, ended or not."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            after_name = path.read_text().rpartition(")")[2].split()
            if int(after_name[3]) == leader:
                found.append(int(path.parent.name))
    return found
