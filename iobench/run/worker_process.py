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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pydantic

from iobench.backends.caffe import log as caffe_log
from iobench.core import registry, stages
from iobench.core.cases import Dataset, Extent, Placement, Task, Trial
from iobench.core.channel import Barrier, Extents, Go, Hello, M, Prepare, Prepared, Ready, Result
from iobench.core.clock import clock
from iobench.core.errors import TrialFailed
from iobench.core.protocols import ImageUse
from iobench.core.records import RankResult
from iobench.host.agent import LOCAL, Agent, NodeAgent
from iobench.run import cache_state, command, placed_folders, ranks
from iobench.run.command import Started
from iobench.run.listener import Listener
from iobench.run.nodes import Nodes

_RANK: pydantic.TypeAdapter[RankResult] = pydantic.TypeAdapter(RankResult)
_EXTENTS: pydantic.TypeAdapter[list[list[Extent]]] = pydantic.TypeAdapter(list[list[Extent]])
#: Time limits: docs/architecture.md, "The control channel".
HELLO_S, GRACE_S = 60.0, 10.0
#: Seconds that a launcher gets to end its ranks and remove what it keeps of them.
_TERMINATE_S = 3.0
#: What most likely ended a process by these signals.
_LIKELY = {
    signal.SIGBUS: "a mapped file, such as an LMDB, was cut short? /dev/shm is full?",
    signal.SIGABRT: "a library's own check failed",
}


@dataclasses.dataclass(frozen=True)
class TrialSettings:
    """What every trial of a suite shares.

    ``enter``: words put before the worker's command (a benchmark joins a throttled cgroup by it;
    a daemon's containers are no children of it).  ``images``: name -> image, for the runtimes that
    need one (:func:`iobench.run.command.images_for`).  ``placements``: by the location of the cases
    whose data were put somewhere.  ``lock_pages``: hold warm data in memory; not where memory is
    what is studied.  ``cold_rates``: bytes/s of one stream by stored form, as measured.
    ``copies``: (stored form, number) -> a copy of the dataset in that form.  ``agent``: of this
    node, where the ranks of most cases run.  ``nodes``: those of the others.
    """

    limit_s: float = 120.0
    compute_s: float = 6.0
    allow_drop_caches: bool = False
    decode_delay_s: float = 0.0
    enter: Sequence[str] = ()
    images: Mapping[str, ImageUse] = dataclasses.field(default_factory=dict)
    placements: Mapping[str, Placement] = dataclasses.field(default_factory=dict)
    lock_pages: bool = True
    cold_rates: dict[str, float] = dataclasses.field(default_factory=dict)
    copies: dict[tuple[str, int], Dataset] = dataclasses.field(default_factory=dict)
    agent: Agent = LOCAL
    nodes: Nodes | None = None

    def nodes_of(self, trial: Trial) -> Nodes | None:
        """Return the nodes of a trial whose case is on several; None: it runs on this one."""
        if trial.case.nodes == 1:
            return None
        assert self.nodes is not None
        return self.nodes.first(ranks.nodes(trial))

    def agents(self, trial: Trial) -> dict[str, NodeAgent]:
        """Return the agents of a trial's nodes by their names; of this one alone by ""."""
        several = self.nodes_of(trial)
        return {a.node: a for a in several.agents} if several else {"": self.agent}


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
        self._failed_at = 0.0
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

    def arrived(self, until: float) -> bool:
        """Exchange messages until every rank waits at the barrier; False: the clock came first.

        Raises TrialFailed where one will not come.
        """
        while not self.listener.from_all(Barrier):
            if clock() >= until:
                return False
            if self._serve(until) or self.listener.failing:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(GRACE_S)  # it says why it ended
                raise TrialFailed(self._why())
        return True

    def results(self) -> tuple[RankResult, ...]:
        """Wait for every result and for the end of all processes; return the results by rank."""
        self._until(Result)
        while not self._serve():
            pass
        return self.finished()

    def finished(self) -> tuple[RankResult, ...]:
        """Return the results that have come so far, by rank."""
        try:
            return tuple(_RANK.validate_python(m.result) for m in self.listener.kept(Result))
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise TrialFailed(f"a rank sent a wrong result: {where}: {first['msg']}") from None

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
        self.started.runtime.stop(self.started.name)

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
        late = f"ran longer than limit_s = {limit_s:g}; raise it in the spec, or take fewer samples"
        end = self.begun + limit_s
        if hello_s < limit_s and not self.listener.from_all(Hello):
            end = self.begun + hello_s
            late = (
                f"{self.listener.missing()} did not connect to the driver within {hello_s:g} s of "
                "the start; raise limit_s in the spec where starting takes longer"
            )
        if self.listener.failing:
            self._failed_at = self._failed_at or now
            end = min(end, self._failed_at + GRACE_S)
        if now > end:
            raise TrialFailed(self._why() if self.listener.failing else late)
        return self.listener.serve(self._sentinel, min(end, until) - now)

    def _why(self) -> str:
        """Return in one line why there is no result: a rank's own error, else how it ended."""
        if errors := ranks.errors(self.finished()):
            return errors[0]
        stderr = (self.work / "stderr").read_text(errors="replace")
        if (code := self.process.poll()) is None:
            last = _last_line(stderr)
            return f"{self.listener.failing} closed its connection and sent no result{last}"
        return why_ended(code, stderr, self.trial.case.launcher, ranks.started(self.trial))


def why_ended(code: int, stderr: str, launcher: str, world_size: int) -> str:
    """Return in one line why processes ended with this status, as they and their launcher say."""
    who = "worker"
    failed = registry.load("launchers", launcher).failure(stderr)
    if failed is not None:
        code, who, stderr = failed.code, ranks.name(failed.rank, world_size), failed.output
    if reason := caffe_log.fatal(stderr):
        return reason if world_size == 1 else f"{who}: {reason}"
    last = _last_line(stderr)
    if code > 128:  # a container's end, as its runtime reports it
        code = 128 - code
    if code < 0 and -code in set(signal.Signals):
        likely = _LIKELY.get(signal.Signals(-code), "out of memory?")
        return f"{who} killed by {signal.Signals(-code).name} ({likely}){last}"
    return f"{who} ended with status {code} and no result{last}"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return f": {lines[-1]}" if lines else ""


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
