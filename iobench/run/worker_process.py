"""A worker's processes from the driver's side: started, talked with, waited for, ended."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pydantic

from iobench.core import registry, stages
from iobench.core.cases import Dataset, Extent, Placement, Task, Trial
from iobench.core.channel import (
    Barrier,
    ControlMessage,
    Extents,
    Go,
    Hello,
    M,
    Prepare,
    Prepared,
    Ready,
    Result,
)
from iobench.core.clock import clock
from iobench.core.errors import TrialFailed
from iobench.core.records import RankResult
from iobench.host import columns, lock_waits, scratch
from iobench.run import cache_state, command, ended, placed_folders, rank_results, ranks
from iobench.run.command import Started
from iobench.run.listener import Listener
from iobench.run.trial_settings import TrialSettings

_EXTENTS: pydantic.TypeAdapter[list[list[Extent]]] = pydantic.TypeAdapter(list[list[Extent]])
#: Time limits: docs/architecture.md, "The control channel".
HELLO_S, GRACE_S = 60.0, 10.0
#: Seconds that a launcher gets to end its ranks and remove what it keeps of them.
_TERMINATE_S = 3.0


@dataclasses.dataclass
class Worker:
    """The processes of one trial: a runtime's or a launcher's, and the ranks that connect back.

    ``begun``: the clock when ``process`` was started.  ``inside``: the ranks set the cache state.
    ``limited``: what makes a process join the control group of the case's limits.
    """

    process: subprocess.Popen[bytes]
    listener: Listener
    work: Path
    started: Started
    trial: Trial
    settings: TrialSettings
    begun: float
    inside: bool
    limited: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._failed_at, self._moved = 0.0, False
        self._starved = self.settings.agent.killed_since()
        self._sentinel = _sentinel(self.process.pid)

    def wait_ready(self) -> float:
        """Wait until every rank has imported its libraries; return the seconds since the start."""
        self._until(Ready)
        if several := self.settings.nodes_of(self.trial):
            places = {hello.rank: hello.node for hello in self.listener.kept(Hello)}
            if reason := ranks.misplaced(places, [agent.node for agent in several.agents]):
                raise TrialFailed(reason)
        return clock() - self.begun

    def prepared(self) -> list[Prepared]:
        """Have every rank bring the page cache into the trial's state; return what each found."""
        self.listener.send(Prepare())
        return self._until(Prepared)

    def extents(self, node: str = "") -> list[list[Extent]]:
        """Return the extents of each sample, rank after rank in its order, in host paths.

        ``node``: of its ranks alone.
        """
        both = zip(self._until(Hello), self._until(Extents), strict=True)
        rows = [row for hello, sent in both if node in ("", hello.node) for row in sent.rows]
        try:
            found = _EXTENTS.validate_python(rows)
        except pydantic.ValidationError:
            raise TrialFailed(
                "a rank sent no extents of samples: is its iobench another?"
            ) from None
        return [[self.started.outside(extent) for extent in row] for row in found]

    def processes(self) -> list[int]:
        """Return this machine's process id of every rank; [] where one is not seen from here."""
        return self.settings.agent.processes(self.started.name, [h.pid for h in self._until(Hello)])

    def release(self) -> None:
        """Let the ranks begin."""
        self.listener.send(Go())

    def arrived(self, until: float, at: type[ControlMessage] = Barrier) -> bool:
        """Exchange messages until every rank waits at the barrier; False: the clock came first.

        ``at``: or has sent this message.  Raises TrialFailed where one will not come.
        """
        while not self.listener.from_all(at):
            if clock() >= until:
                return False
            self.check(until)
        return True

    def check(self, until: float) -> None:
        """Exchange messages until something happens; raise TrialFailed where a rank has ended."""
        if self._serve(until) or self.listener.failing:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_S)  # it says why it ended
            raise TrialFailed(self._why())

    def results(self) -> tuple[RankResult, ...]:
        """Wait for every result and for the end of all processes; return the results by rank."""
        self._until(Result)
        while not self._serve():
            pass
        return self.finished()

    def finished(self) -> tuple[RankResult, ...]:
        """Return the results that have come so far, by rank."""
        kept = self.settings.columns
        folder = kept if kept and self._moved else self.work
        return rank_results.parse(self.listener.kept(Result), folder, in_memory=kept is None)

    def left(self) -> tuple[RankResult, ...]:
        """Return the results of a trial that ends, with the columns that could be kept."""
        try:
            self.keep_columns()
        except TrialFailed:  # what made the trial end is what failed
            return tuple(map(columns.bare, self.finished()))
        return self.finished()

    def keep_columns(self) -> None:
        """Have every node move its ranks' columns to where they are kept; idempotent.

        Raises TrialFailed where one cannot.
        """
        if self.settings.columns and not self._moved:
            said, sent = self.listener.kept(Hello), self.listener.kept(Result)
            agents = self.settings.agents(self.trial)
            rank_results.keep(agents, said, sent, self.work, self.settings.columns)
            self._moved = True

    def short_of_memory(self) -> str:
        """Return that the kernel ended processes for want of memory, "" where it ended none."""
        killed = self.settings.agent.killed(self.limited)
        limit = self.trial.case.memory_bytes >> 20
        words = f"the kernel ended {killed} of its processes: memory = {limit} MiB is too little"
        return words if killed else ""

    def end(self) -> None:
        """End the ranks, the process group and what the runtime started by its name."""
        process = self.process
        apart = self.started.ranks_apart
        if apart and process.poll() is None:
            process.terminate()  # it ends its ranks, and removes its folder and its shared memory
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_TERMINATE_S)
        self.listener.close()
        os.close(self._sentinel)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for member in _session(process.pid) if apart else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        process.wait()
        scratch.remove(registry.load("launchers", self.trial.case.launcher).leaves(process.pid))
        self.started.runtime.stop(self.started.name)
        several, case = self.settings.nodes_of(self.trial), self.trial.case
        for agent in several.agents if several else ():
            with contextlib.suppress(TrialFailed):  # one that has gone
                agent.stop(case.runtime, case.runtime_options, self.started.name)

    def _until(self, kind: type[M]) -> list[M]:
        """Return every rank's message of this kind.  Raises TrialFailed where one will not come."""
        while not self.listener.from_all(kind):
            if self._serve():
                self.process.wait()
                raise TrialFailed(self._why())
        return self.listener.kept(kind)

    def _serve(self, until: float = math.inf) -> bool:
        """Exchange messages until something has happened; return whether the process has ended.

        At most until the clock reads ``until``.  Raises TrialFailed when time is up.
        """
        now, limit_s = clock(), self.settings.limit_s
        hello_s = max(HELLO_S, limit_s / 2)
        starting = hello_s < limit_s and not self.listener.from_all(Hello)
        end = self.begun + (hello_s if starting else limit_s)
        if self.listener.failing:
            self._failed_at = self._failed_at or now
            end = min(end, self._failed_at + GRACE_S)
        if now <= end:
            return self.listener.serve(self._sentinel, min(end, until) - now)
        if self.listener.failing:
            raise TrialFailed(self._why())
        again = self.settings.agent.read_again(self.limited)
        memory = self.short_of_memory() or ended.read_again(again, self.trial.case.memory_bytes)
        cause = lock_waits.words(self.process.pid) or memory
        if starting:
            raise TrialFailed(
                f"{self.listener.missing()} did not connect to the driver within {hello_s:g} s of "
                f"the start; {cause or 'raise limit_s in the spec where starting takes longer'}"
            )
        raise TrialFailed(ended.late(limit_s, self.listener.unfinished(), cause))

    def _why(self) -> str:
        """Return in one line why there is no result: a rank's own error, else how it ended."""
        if errors := ranks.errors(self.finished(), self.trial.case.nodes):
            return errors[0]
        stderr = (self.work / "stderr").read_text(errors="replace")
        if (code := self.process.poll()) is None or self.listener.lost:
            last = ended.last_line(stderr)
            return f"{self.listener.failing} {self.listener.failed_how} and sent no result{last}"
        return ended.why(
            code, stderr, self.trial.case.launcher, ranks.started(self.trial),
            places=self.listener.places(), failing=self.listener.failing,
            starved=None if self.settings.nodes_of(self.trial) else self._starved(),
        )  # fmt: skip


def _sentinel(pid: int) -> int:
    """Return a pidfd, which kernels before 5.3 do not have: ready when a child has ended."""
    reading, writing = os.pipe()

    def wait() -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.close(writing)

    threading.Thread(target=wait, daemon=True).start()
    return reading


@contextlib.contextmanager
def worker_of(
    trial: Trial, dataset: Dataset, work: Path, settings: TrialSettings, place: Placement | None
) -> Iterator[Worker]:
    """Start the trial's processes; whatever happens, all that was started is gone afterwards.

    Every rank, wherever it runs, ends when its connections close: the driver loses them even by
    ``kill -9``.  Raises TrialFailed where they cannot be started.
    """
    case, stage = trial.case, stages.of(trial.stage)
    runtime = registry.load("runtimes", case.runtime)
    name = f"iobench-{secrets.token_hex(6)}"
    world_size = ranks.started(trial)
    several = settings.nodes_of(trial)
    inside = bool(place and place.inside and trial.cache != "-" and not stage.on_host)
    if place and inside:
        cache_state.check(trial.cache, place)
    with contextlib.ExitStack() as undo:
        launcher = "local" if stage.on_host else case.launcher
        address = several.address if several else ""
        listener = Listener(work, case, launcher, world_size, address)
        undo.callback(listener.close)
        started = command.start(
            case, dataset, work, settings.images, name=name, on_host=stage.on_host, place=place,
            world_size=world_size, hosts=several.hosts if several else (),
        )  # fmt: skip
        for agent in several.agents if several else ():
            undo.enter_context(agent.work_folder(work, *command.work_folder(work)))
        listener.task = Task(
            trial=trial,
            dataset=started.dataset,
            seconds=0.0 if stage.reads else settings.compute_s,
            decode_delay_s=settings.decode_delay_s,
            inside=inside,
            scratch=str(undo.enter_context(placed_folders.beside(dataset))) if stage.writes else "",
            allow_drop_caches=settings.allow_drop_caches,
        )
        limited: Sequence[str] = ()
        if not stage.on_host and runtime.limits is None:
            limited = undo.enter_context(settings.agent.group(case.cpus, case.memory_bytes, name))
        stderr = undo.enter_context(open(work / "stderr", "wb"))
        begun = clock()
        process = subprocess.Popen(
            [*settings.enter, *limited, *started.argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, **started.variables},
            start_new_session=True,
            # Python looks for modules there first, and conmon leaves a file "oom"
            cwd=work,
        )
        worker = Worker(process, listener, work, started, trial, settings, begun, inside, limited)
        undo.callback(worker.end)
        yield worker


def _session(leader: int) -> list[int]:
    """Return the processes of a session that was started with ``leader``, ended or not."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(path.name)) == leader:
                found.append(int(path.name))
    return found
