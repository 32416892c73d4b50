"""One trial from the driver's side: start it, set and prove the cache state, release, judge.

The driver never imports what it measures.  The worker imports its libraries first and says
``ready``; only then is the page cache controlled and proven, so the proof is milliseconds old when
the clock starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from iobench import ceiling, limits, pagecache, registry, starting, strace
from iobench.cacheproof import judge
from iobench.dataset import form_root
from iobench.errors import (
    BackendUnavailable,
    CacheStateError,
    ImageError,
    SpecError,
    TrialFailed,
)
from iobench.model import (
    EXPLORATORY,
    FAILED,
    INVALID,
    VALID,
    CacheProof,
    Dataset,
    Extent,
    RankResult,
    Record,
    Task,
    Trial,
    to_json,
)
from iobench.mounts import describe_mount, filesystem_for
from iobench.starting import ImageUse, Started
from iobench.timing import clock

_RANK: pydantic.TypeAdapter[RankResult] = pydantic.TypeAdapter(RankResult)
_POLL_S = 0.002
DATA_STAGES = ("ceiling", "read", "decode", "load", "train", "probe")
IN_PLACE = "read in place: others may read, change or cache the user's own files meanwhile"
_NO_REASONS: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Settings:
    """What every trial of a suite shares.

    ``enter``: words put before the worker's command (a benchmark joins a throttled cgroup by it;
    a daemon's containers are no children of it).  ``images``: name -> image, for the runtimes that
    need one (:func:`iobench.starting.images_for`).
    """

    limit_s: float = 120.0
    compute_s: float = 6.0
    allow_drop_caches: bool = False
    decode_delay_s: float = 0.0
    enter: Sequence[str] = ()
    images: Mapping[str, ImageUse] = dataclasses.field(default_factory=dict)


def run_trial(trial: Trial, dataset: Dataset, attempt: int, settings: Settings) -> Record:
    """Run one attempt and return its record; a trial that fails is a record too.

    Raises only what stops a whole suite: KeyboardInterrupt, and IobenchErrors about the results.
    """
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    begun = clock()
    files = _files(trial, dataset)
    _, filesystem = filesystem_for(Path(dataset.root))
    proof = CacheProof()
    ranks: tuple[RankResult, ...] = ()
    ceiling_result: Mapping[str, Any] = {}
    status, reasons = VALID, _NO_REASONS
    notes: dict[str, Any] = {}
    runtime: Mapping[str, Any] = {}
    ready_s = 0.0
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        work = Path(folder)
        try:
            if trial.stage != "ceiling":
                runtime = starting.record_of(trial.case, settings.images)
            with _worker(trial, dataset, work, settings) as worker:
                ready_s = worker.wait_ready()
                if trial.stage != "ceiling":
                    proof = _prepare(trial, files, worker, settings)
                mount_before = dict(filesystem.counters(Path(dataset.root)))
                with _traced(trial, worker) as traced:
                    worker.release()
                    ranks = worker.results()
                mount_after = filesystem.counters(Path(dataset.root))
            if trial.stage == "ceiling":
                proof, ceiling_result = _ceiling(trial, worker, files, settings)
                mount_after = filesystem.counters(Path(dataset.root))
            notes["mount_bytes"] = {k: mount_after[k] - v for k, v in mount_before.items()}
            proof = _after(trial, proof, files, ranks, filesystem)
            if runtime.get("form"):
                proof = _without_image(trial, proof)
            status, reasons = _judge(trial, proof, ranks, ceiling_result)
            if traced is not None and status == VALID:
                notes["calls"] = traced.note(ranks)
                status, reasons = strace.standing(notes["calls"])
            if dataset.in_place and status == VALID and trial.stage in DATA_STAGES:
                status, reasons = EXPLORATORY, (IN_PLACE,)
        except CacheStateError as error:
            status, reasons = INVALID, (str(error),)
        except (TrialFailed, BackendUnavailable, ImageError, SpecError) as error:
            status, reasons = FAILED, (str(error),)
    return Record(
        trial=trial,
        attempt=attempt,
        status=status,
        reasons=tuple(reasons),
        started=started,
        wall_s=clock() - begun,
        cache=proof,
        ranks=ranks,
        ceiling=ceiling_result,
        mount=describe_mount(Path(dataset.root)),
        runtime=runtime,
        ready_s=ready_s,
        notes=notes,
    )


def _files(trial: Trial, dataset: Dataset) -> list[Path]:
    case = trial.case
    form = registry.load("formats", case.format).make(**case.format_options)
    files: list[Path] = form.files(dataset, form_root(dataset, case.stored_form))
    return files


def _prepare(
    trial: Trial, files: Sequence[Path], worker: _Worker, settings: Settings
) -> CacheProof:
    """Bring the files into the trial's cache state and measure what was reached."""
    if trial.cache == "-" or not files:
        return CacheProof()
    label = trial.cache
    if trial.cache == "cold":
        pagecache.evict(files)
        label = "data-cold"
        if settings.allow_drop_caches:
            pagecache.drop_caches(allowed=True)
            label = "client-cold"
    elif trial.cache == "warm":
        pagecache.check_warmable(sum(f.stat().st_size for f in files))
        pagecache.warm(files)  # also what is resident: kernels reclaim what was not read lately
    else:
        found = pagecache.set_fraction(
            worker.extents(), float(trial.cache), trial.case.seed, files=files
        )
        return CacheProof("fraction", found.method, found.fraction)
    found = pagecache.residency(files)
    return CacheProof(label, found.method, found.fraction)


def _ceiling(
    trial: Trial, worker: _Worker, files: Sequence[Path], settings: Settings
) -> tuple[CacheProof, Mapping[str, Any]]:
    """Read the same extents in the same order with fio."""
    case = trial.case
    proof = _prepare(trial, files, worker, settings)
    result = ceiling.run(
        ceiling.plan(worker.extents(), jobs=max(case.workers, 1), batch=case.batch),
        work=worker.work / "fio",
        mapped=registry.load("formats", case.format).mapped,
        read_ahead=bool(case.format_options.get("readahead", True)),
        limit_s=settings.limit_s,
        enter=settings.enter,
    )
    return dataclasses.replace(proof, bytes_storage=result.storage_bytes), to_json(result)


def _after(
    trial: Trial,
    proof: CacheProof,
    files: Sequence[Path],
    ranks: Sequence[RankResult],
    filesystem: Any,
) -> CacheProof:
    if trial.cache == "-" or not files:
        return proof
    found = dataclasses.replace(
        proof,
        resident_after=pagecache.residency(files).fraction,
        bytes_needed=sum(r.bytes_needed for r in ranks),
    )
    if trial.stage == "ceiling":  # fio read the files, not the ranks
        return found
    counted = [filesystem.storage_bytes(r.io) for r in ranks]
    storage = [n for n, _ in counted]
    return dataclasses.replace(
        found,
        bytes_read=sum(r.io.rchar for r in ranks),
        bytes_storage=None if None in storage else sum(n for n in storage if n is not None),
        counter=counted[0][1] if counted else "",
    )


def _without_image(trial: Trial, proof: CacheProof) -> CacheProof:
    """Return a warm proof without the bytes of the image's own files.

    A container's code is paged in while the loop runs, and every mount of a SIF begins with none
    of it cached: those bytes count as the worker's.  Data that are wholly resident before and
    after were not read from storage.
    """
    resident = proof.resident_before == proof.resident_after == 1.0
    if trial.cache != "warm" or not resident or not proof.bytes_storage:
        return proof
    counter = f"{proof.counter}, without {proof.bytes_storage} of the image's own files"
    return dataclasses.replace(proof, bytes_storage=0, counter=counter)


def _judge(
    trial: Trial,
    proof: CacheProof,
    ranks: Sequence[RankResult],
    ceiling_result: Mapping[str, Any],
) -> tuple[str, tuple[str, ...]]:
    errors = [r.error for r in ranks if r.error]
    if errors:
        return FAILED, tuple(e.splitlines()[-1] for e in errors)
    if trial.stage == "ceiling":
        if ceiling_result["invalid"]:
            return INVALID, (ceiling_result["invalid"],)
        return judge(trial.cache, trial.stage, proof)
    if trial.stage == "digest":
        wrong = sum(int(r.notes.get("wrong_digests", 0)) for r in ranks)
        if wrong:
            return INVALID, (f"{wrong} samples are not the dataset's: run `iobench data verify`",)
        return VALID, ()
    if trial.stage in ("compute", "calls") or trial.cache == "-":
        return VALID, ()
    if trial.stage != "probe" and not sum(sum(r.steps.samples) for r in ranks):
        return INVALID, ("the loop saw no sample: fewer samples than one batch?",)
    return judge(trial.cache, trial.stage, proof)


def _traced(
    trial: Trial, worker: _Worker
) -> contextlib.AbstractContextManager[strace.Trace | None]:
    """Return what counts the worker's system calls, where the trial is for that."""
    if trial.stage != "calls":
        return contextlib.nullcontext()
    return strace.trace(worker.processes(), worker.work)


class _Worker:
    """A started worker: its process group, its folder and its deadline."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        work: Path,
        started: Started,
        trial: Trial,
        limit_s: float,
        begun: float,
    ) -> None:
        self._process, self.work, self._started, self._trial = process, work, started, trial
        self._world_size = trial.case.world_size
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

    def extents(self) -> list[list[Extent]]:
        """Return the extents of each sample of rank 0, in the pipeline's order, in host paths."""
        rows = json.loads((self.work / "extents.0.json").read_text())
        return [[self._started.outside(Extent(*extent)) for extent in row] for row in rows]

    def processes(self) -> list[int]:
        """Return this machine's process id of every rank; [] where one is not seen from here."""
        inside = [int((self.work / f"pid.{r}").read_text()) for r in range(self._world_size)]
        return strace.processes(self._started.name, inside)

    def release(self) -> None:
        """Let the ranks begin."""
        (self.work / "go").touch()

    def results(self) -> tuple[RankResult, ...]:
        """Wait for the end and return each rank's result."""
        self._wait(lambda: False)
        results = []
        for rank in range(self._world_size):
            path = self.work / f"result.{rank}.json"
            if not path.exists():
                raise TrialFailed(self._why())
            results.append(_RANK.validate_python(json.loads(path.read_text())))
        return tuple(results)

    def _wait(self, done: Callable[[], bool]) -> None:
        """Return when ``done()`` or the process has ended; raise TrialFailed when time is up."""
        while not done():
            if self._process.poll() is not None:
                if not (self.work / "result.0.json").exists():
                    raise TrialFailed(self._why())
                return
            if clock() > self._deadline:
                raise TrialFailed(
                    f"ran longer than limit_s = {self._limit_s:g}; raise it in the spec, or take "
                    "fewer samples"
                )
            time.sleep(_POLL_S)

    def _why(self) -> str:
        code = self._process.returncode
        text = (self.work / "stderr").read_text(errors="replace").strip().splitlines()
        last = f": {text[-1]}" if text else ""
        if code is not None and code > 128:  # a container's end, as its runtime tells it
            code = 128 - code
        if code is not None and code < 0 and -code in set(signal.Signals):
            return f"worker killed by {signal.Signals(-code).name} (out of memory?){last}"
        return f"worker ended with status {code} and no result{last}"


@contextlib.contextmanager
def _worker(trial: Trial, dataset: Dataset, work: Path, settings: Settings) -> Iterator[_Worker]:
    """Start the trial's process; whatever happens, all that it started is gone afterwards.

    Its process group is killed.  What runs elsewhere, in a container, ends when its standard input
    closes (this process holds the other end, and loses it even by ``kill -9``), and the runtime is
    asked to stop it by its name.
    """
    case = trial.case
    on_host = trial.stage == "ceiling"  # looks where the samples lie, and measures nothing
    name = f"iobench-{secrets.token_hex(6)}"
    started = starting.start(case, dataset, work, settings.images, name=name, on_host=on_host)
    task = Task(
        trial=trial,
        dataset=started.dataset,
        handshake=started.folder,
        result=f"{started.folder}/result",
        seconds=settings.compute_s if trial.stage == "compute" else 0.0,
        decode_delay_s=settings.decode_delay_s,
    )
    (work / "task.json").write_text(json.dumps(to_json(task)))
    with contextlib.ExitStack() as undo:
        enter = list(settings.enter)
        if not on_host and registry.load("runtimes", case.runtime).limits is None:
            group = undo.enter_context(limits.group(case.cpus, case.memory_bytes, name))
            enter += group.prefix
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
        yield _Worker(process, work, started, trial, settings.limit_s, begun)


def _end(process: subprocess.Popen[bytes], started: Started) -> None:
    """Kill a worker's process group and what its runtime started by its name."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    started.runtime.stop(started.name)
