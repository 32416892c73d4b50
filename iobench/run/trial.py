"""One trial from the driver's side: start it, set and prove the cache state, release, judge.

docs/architecture.md, "One trial".
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from iobench.analysis import ranks as rank_figures
from iobench.core import registry, stages
from iobench.core.cases import Dataset, Placement, Trial, alike, to_json
from iobench.core.clock import clock
from iobench.core.dataset import files_of
from iobench.core.errors import (
    BackendUnavailable,
    CacheStateError,
    ImageError,
    SpecError,
    TrialFailed,
)
from iobench.core.protocols import Crossed
from iobench.core.records import (
    EXPLORATORY,
    FAILED,
    INVALID,
    VALID,
    CacheProof,
    IoCounters,
    RankResult,
    Record,
    Slices,
)
from iobench.host.agent import Trace
from iobench.run import cache_state, ceiling, command, placing
from iobench.run import ranks as world
from iobench.run.cache_state import Verdict
from iobench.run.worker_process import TrialSettings, Worker, worker_of

__all__ = ["IN_PLACE", "TrialSettings", "run_trial"]

IN_PLACE = "read in place: others may read, change or cache the user's own files meanwhile"
TOGETHER = "the arms took turns on one mount, whose counter counts all of them"
_MISSING = "`iobench data verify` says what else is; restore it, or make the dataset again"


def run_trial(trial: Trial, dataset: Dataset, attempt: int, settings: TrialSettings) -> Record:
    """Run one attempt and return its record; a trial that fails is a record too.

    Raises only what stops a whole suite: KeyboardInterrupt, and IobenchErrors about the results.
    """
    tried = Attempt(trial, dataset, settings)
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder, tried.judged():
        tried.measure(Path(folder))
    return tried.record(attempt)


class Attempt:
    """One attempt at a trial, and what has been measured of it so far, by the record's names."""

    def __init__(self, trial: Trial, dataset: Dataset, settings: TrialSettings) -> None:
        self._begun = clock()
        self.started = datetime.datetime.now(datetime.timezone.utc).isoformat(
            timespec="milliseconds"
        )
        self.trial, self._settings, self._agent = trial, settings, settings.agent
        self._stage = stages.of(trial.stage)
        self._place = settings.placements.get(trial.case.location)
        self._dataset = placing.dataset_of(dataset, self._place)
        self._files = _files(trial, self._dataset, self._place)
        #: On the mount that is measured: files read in place may lie elsewhere than the dataset.
        self.where = self._files[0] if self._files else Path(self._dataset.root)
        self.proof = CacheProof()
        self.ranks: tuple[RankResult, ...] = ()
        self.ceiling: Mapping[str, Any] = {}
        self.runtime: Mapping[str, Any] = {}
        self.ready_s = 0.0
        self.slices: Slices | None = None
        self.notes: dict[str, Any] = {}
        self.status = FAILED
        self.reasons: tuple[str, ...] = ("it has not run",)
        self._held = contextlib.ExitStack()
        self._counters: Mapping[str, int] = {}
        self._counting_s = 0.0  # the clock as they were read
        self._others_per_s: float | None = None

    @contextlib.contextmanager
    def judged(self) -> Iterator[None]:
        """Take what goes wrong in the body as this attempt's verdict."""
        try:
            yield
        except CacheStateError as error:
            self.status, self.reasons = INVALID, (str(error),)
        except (TrialFailed, BackendUnavailable, ImageError, SpecError) as error:
            self.status, self.reasons = FAILED, (str(error),)

    def record(self, attempt: int, *, share: int = 1) -> Record:
        """Return what is stored of it; ``share``: so many attempts ran at once."""
        return alike(
            Record,
            self,
            attempt=attempt,
            wall_s=(clock() - self._begun) / share,
            cache=self.proof,
            mount=self._agent.mount(self.where),
        )

    def measure(self, work: Path) -> None:
        """Run it in the folder ``work`` and judge it.  Raises what :meth:`judged` takes."""
        traced: Trace | None = None
        with self.running(work) as worker:
            if self._stage.on_host:
                self._locate_and_replay(worker)
            else:
                self.prepare(worker)
                with self._traced(worker) as traced:
                    worker.release()
                    worker.results()
            self.finish(worker, traced)

    @contextlib.contextmanager
    def running(self, work: Path) -> Iterator[Worker]:
        """Start the ranks in the folder ``work`` and wait until they are ready."""
        if not self._stage.on_host:
            self.runtime = command.record_of(self.trial.case, self._settings.images)
        with (
            self._held,
            worker_of(self.trial, self._dataset, work, self._settings, self._place) as worker,
        ):
            try:
                self.ready_s = worker.wait_ready()
                yield worker
            finally:
                self.ranks = worker.finished()

    def finish(self, worker: Worker, traced: Trace | None = None) -> None:
        """Complete the proof of ranks that have ended, and judge."""
        self.ranks = worker.finished()
        self._prove_after(self._counted(), inside=worker.inside)
        self.status, self.reasons = self._judge(traced)

    def prepare(self, worker: Worker) -> None:
        """Bring the data into the trial's cache state; ranks that alone see them do it there."""
        self._bring(worker)
        self._count()

    def _count(self) -> None:
        """Begin to count what crosses the mount: nothing of ours uses it now.

        What others use of it counts where the data have to cross it.
        """
        if self.trial.cache not in ("warm", "-"):
            self._others_per_s = self._agent.others(self.where)
            self.proof = dataclasses.replace(self.proof, caches=self._agent.caches(self.where))
        self._counters, self._counting_s = self._agent.counters(self.where), clock()

    def _counted(self) -> Crossed:
        """Return what crossed the mount since."""
        after, seconds = self._agent.counters(self.where), clock() - self._counting_s
        moved = {name: after[name] - n for name, n in self._counters.items() if name in after}
        self.notes["mount_bytes"] = moved
        io = cache_state.io_of(self.ranks)
        if self._stage.on_host:
            io = IoCounters(read_bytes=int(self.ceiling.get("storage_bytes", 0)))
        crossed = self._agent.crossed(self.where, io, moved)
        if crossed.whole and self.trial.slice_s and self.trial.cache != "warm":
            return Crossed(None, TOGETHER)
        if crossed.whole:
            others = int((self._others_per_s or 0.0) * seconds)
            self.proof = dataclasses.replace(self.proof, others_bytes=others)
        return crossed

    def _bring(self, worker: Worker) -> None:
        if not worker.inside:
            self.proof = self._set_state(worker)
            return
        seen = worker.prepared()
        # warm data need not be cached a second time in the file that holds them
        host = self._set_state(worker) if self.trial.cache == "cold" else CacheProof()
        self.proof = cache_state.before(self.trial.cache, host, seen)
        if self.trial.cache == "warm":
            self.proof = dataclasses.replace(self.proof, unheld="they lie inside an image")

    def _set_state(self, worker: Worker) -> CacheProof:
        """Bring the files into the trial's cache state and prove what was reached.

        Raises TrialFailed for one that is missing or that cannot be read.
        """
        if self.trial.cache == "-" or not self._files:
            return CacheProof()
        try:
            return self._proven(worker)
        except FileNotFoundError as error:
            raise TrialFailed(f"{error.filename} is missing: {_MISSING}") from None
        except OSError as error:
            name = error.filename or "the data"
            raise TrialFailed(f"{name}: {error.strerror}; {_MISSING}") from None

    def _proven(self, worker: Worker) -> CacheProof:
        agent, label = self._agent, self.trial.cache
        locked: dict[str, Any] = {}
        if label == "cold":
            agent.evict(self._files)
            label = "data-cold"
            if self._settings.allow_drop_caches:
                agent.drop_caches(allowed=True)
                label = "client-cold"
        elif label == "warm":
            agent.check_warmable(sum(f.stat().st_size for f in self._files))
            agent.warm(self._files)  # also what is resident: kernels reclaim what was not read
            unheld = self._lock()
            rate = self._settings.cold_rates.get(self.trial.case.stored_form)
            locked = {"held": not unheld, "unheld": unheld, "cold_bytes_per_s": rate}
        else:
            found = agent.set_fraction(
                worker.extents(), float(label), self.trial.case.seed, self._files
            )
            return CacheProof("fraction", found.method, found.fraction)
        found = agent.residency(self._files)
        return CacheProof(label, found.method, found.fraction, **locked)

    def _lock(self) -> str:
        """Lock the data's pages until this attempt is judged; return "" or why they are not."""
        if not self._settings.lock_pages:
            return "memory is limited in this suite"
        return self._held.enter_context(self._agent.lock(self._files))

    def _locate_and_replay(self, worker: Worker) -> None:
        """Have the samples located, then read the same extents in the same order with fio."""
        worker.release()
        worker.results()
        extents, case = worker.extents(), self.trial.case
        self.proof = self._set_state(worker)
        self._count()
        result = ceiling.run(
            ceiling.plan(extents, jobs=max(case.workers, 1) * case.world_size, batch=case.batch),
            work=worker.work / "fio",
            mapped=registry.load("formats", case.format).mapped,
            read_ahead=bool(case.format_options.get("readahead", True)),
            limit_s=self._settings.limit_s,
            enter=self._settings.enter,
            agent=self._agent,
        )
        self.ceiling = to_json(result)

    def _traced(self, worker: Worker) -> contextlib.AbstractContextManager[Trace | None]:
        """Return what counts the ranks' system calls, where the trial is for that."""
        if not self._stage.traced:
            return contextlib.nullcontext()
        return self._agent.trace(worker.processes(), worker.work)

    def _prove_after(self, crossed: Crossed, *, inside: bool) -> None:
        """Complete the proof by what is resident now and what crossed the mount."""
        if self._place and inside:
            below = crossed if self._files else None
            self.proof = cache_state.after(self.proof, self.ranks, self._place, below)
        elif self.trial.cache != "-" and self._files:
            self.proof = cache_state.after_here(
                self.proof,
                self.ranks,
                self._files,
                self._agent,
                crossed,
                by_fio=self._stage.on_host,
            )
        trainer = registry.load("trainers", self.trial.case.trainer).make
        if self.runtime.get("form"):
            self.proof = dataclasses.replace(self.proof, programs="the image's own files")
        elif self._stage.trained and trainer.feeds_itself:
            self.proof = dataclasses.replace(self.proof, programs="the trainer's program")

    def _judge(self, traced: Trace | None) -> Verdict:
        """Return (status, reasons), and note what of the ranks a reader should know."""
        status, reasons = self._standing()
        self.notes.update(rank_figures.note(self.ranks))
        if traced is not None and status == VALID:
            self.notes["calls"] = note = traced.note(self.ranks)
            if note["reason"]:
                return EXPLORATORY, (f"no calls are counted: {note['reason']}",)
        if self._dataset.in_place and status == VALID and self._stage.reads and self._stage.timed:
            return EXPLORATORY, (IN_PLACE,)
        return status, reasons

    def _standing(self) -> Verdict:
        trial, ranks = self.trial, self.ranks
        if errors := world.errors(ranks):
            return FAILED, errors
        if parted := rank_figures.parted(ranks):
            return INVALID, (parted,)
        if self._stage.on_host and self.ceiling["invalid"]:
            return INVALID, (self.ceiling["invalid"],)
        if self._stage.on_host:
            return cache_state.judge(trial.cache, trial.stage, self.proof)
        if wrong := sum(int(r.notes.get("wrong_digests", 0)) for r in ranks):
            return INVALID, (f"{wrong} samples are not the dataset's: run `iobench data verify`",)
        if trial.cache == "-":
            return VALID, ()
        if self._stage.contrasted and not sum(sum(r.steps.samples) for r in ranks):
            return INVALID, ("the loop saw no sample: fewer samples than one batch?",)
        loop_s = rank_figures.loop_s(rank_figures.running(ranks, self.slices))
        return cache_state.judge(trial.cache, trial.stage, self.proof, loop_s)


def _files(trial: Trial, dataset: Dataset, place: Placement | None) -> list[Path]:
    """Return the files on this host whose pages are the data's."""
    if place and place.inside:
        return [Path(place.files)] if Path(place.files).is_file() else []
    return files_of(trial.case, dataset)
