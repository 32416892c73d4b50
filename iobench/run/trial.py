"""One trial from the driver's side: start it, set and prove the cache state, release, judge.

docs/architecture.md, "One trial".
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from iobench.analysis import ranks as rank_figures
from iobench.core import registry, stages
from iobench.core.cases import Dataset, Placement, Trial, alike, to_json
from iobench.core.clock import clock, utc
from iobench.core.dataset import files_of
from iobench.core.errors import (
    BackendUnavailable,
    CacheStateError,
    ImageError,
    SpecError,
    TrialFailed,
)
from iobench.core.records import (
    EXPLORATORY,
    FAILED,
    INVALID,
    UNKNOWN,
    VALID,
    CacheProof,
    IoCounters,
    RankResult,
    Record,
    Slices,
)
from iobench.host import scratch
from iobench.host.agent import NodeAgent, Trace
from iobench.run import (
    cache_proof,
    cache_state,
    ceiling,
    command,
    copies,
    environment,
    placing,
    requests,
)
from iobench.run import ranks as world
from iobench.run.cache_state import Verdict
from iobench.run.trial_node import TrialNode, everywhere
from iobench.run.trial_settings import TrialSettings
from iobench.run.worker_process import Worker, worker_of

__all__ = ["IN_PLACE", "TrialSettings", "run_trial"]

IN_PLACE = "read in place: others may read, change or cache the user's own files meanwhile"


def run_trial(trial: Trial, dataset: Dataset, attempt: int, settings: TrialSettings) -> Record:
    """Run one attempt and return its record; a trial that fails is a record too.

    Raises only what stops a whole suite: KeyboardInterrupt, and IobenchErrors about the results.
    """
    tried = Attempt(trial, dataset, settings.of(trial, attempt))
    with scratch.folder() as work, tried.judged():
        tried.measure(work)
    return tried.record(attempt)


class Attempt:
    """One attempt at a trial, and what has been measured of it so far, by the record's names."""

    def __init__(self, trial: Trial, dataset: Dataset, settings: TrialSettings) -> None:
        self._begun = clock()
        self.started = utc("milliseconds")
        self.trial, self._settings, self._agent = trial, settings, settings.agent
        self.host, self.job = self._agent.name(), self._agent.job()
        self._rivals = {*map(str, self._agent.rivals())}
        self._stage = stages.of(trial.stage)
        self._place = settings.placements.get(trial.case.location)
        self._dataset = settings.copies.get(
            (trial.case.folder, trial.copy), placing.dataset_of(dataset, self._place)
        )
        self._look_at(_files(trial, self._dataset, self._place))
        self.ranks: tuple[RankResult, ...] = ()
        self.ceiling: Mapping[str, Any] = {}
        self.runtime: Mapping[str, Any] = {}
        self.ready_s = 0.0
        self.slices: Slices | None = None
        self.notes: dict[str, Any] = {}
        self.status = FAILED
        self.reasons: tuple[str, ...] = ("it has not run",)
        self._beyond = UNKNOWN
        self._held = contextlib.ExitStack()

    def _look_at(self, files: list[Path], root: Path | None = None) -> None:
        """Take these as the files whose pages and whose mount (``root``'s) are looked at."""
        self._files = files
        #: On the mount that is measured: files read in place may lie elsewhere than the dataset.
        self.where = root or (files[0] if files else Path(self._dataset.root))
        self._nodes = [
            TrialNode(name, agent, self.trial, files, self.where, self._settings)
            for name, agent in _readers(self.trial, self._settings).items()
        ]

    @contextlib.contextmanager
    def judged(self) -> Iterator[None]:
        """Take what goes wrong in the body as this attempt's verdict."""
        try:
            yield
        except CacheStateError as error:
            self.status, self.reasons = INVALID, (str(error),)
        except (TrialFailed, BackendUnavailable, ImageError, SpecError) as error:
            self.status, self.reasons = FAILED, (str(error),)

    def record(self, attempt: int, *, at_once: int = 1) -> Record:
        """Return what is stored of it; ``at_once``: so many attempts ran at once."""
        if rivals := self._rivals | {*map(str, self._agent.rivals())}:
            self.notes["rivals"] = sorted(rivals)
        return alike(
            Record,
            self,
            attempt=attempt,
            wall_s=(clock() - self._begun) / at_once,
            at_once=at_once,
            cache=self.proof,
            nodes=tuple(node.record(self.ranks) for node in self._nodes if node.name),
            mount=self._agent.mount(self.where),
        )

    @property
    def proof(self) -> CacheProof:
        """Evidence of all nodes: the worst residency, the bytes of all."""
        return cache_proof.whole(self.trial.cache, [node.proof for node in self._nodes])

    def take(self, proof: CacheProof) -> None:
        """Replace the evidence of its only node."""
        (node,) = self._nodes
        node.proof = proof

    def measure(self, work: Path) -> None:
        """Run it in the folder ``work`` and judge it.  Raises what :meth:`judged` takes."""
        traced: Trace | None = None
        with self.running(work) as worker:
            if self._stage.by_fio:
                self._locate_and_replay(worker)
            else:
                if not self._stage.starts:  # what it measures was prepared before it started
                    self.prepare(worker)
                    self.count()
                with self._traced(worker) as traced:
                    worker.release()
                    worker.results()
            self.finish(worker, traced)

    @contextlib.contextmanager
    def running(self, work: Path) -> Iterator[Worker]:
        """Start the ranks in the folder ``work`` and wait until they are ready."""
        with self.started_in(work) as worker:
            self.ready_s = worker.wait_ready()
            yield worker

    @contextlib.contextmanager
    def started_in(self, work: Path) -> Iterator[Worker]:
        """Start the ranks in the folder ``work``."""
        if not self._stage.on_host:
            self.runtime = command.record_of(self.trial.case, self._settings.images)
        with self._held:
            if self._stage.starts:
                self._prepare_software()
            if copies.touches_first(self.trial, self._settings):
                copied = copies.untouched(self.trial, self._dataset, self._settings)
                self._dataset, self._beyond = self._held.enter_context(copied)
                self._look_at(_files(self.trial, self._dataset, None), self.where)
            with worker_of(self.trial, self._dataset, work, self._settings, self._place) as worker:
                try:
                    yield worker
                finally:
                    self.ranks = worker.left()

    def finish(self, worker: Worker, traced: Trace | None = None) -> None:
        """Complete the proof of ranks that have ended, and judge.

        Raises TrialFailed where the kernel ended any of their processes.
        """
        if reason := worker.short_of_memory():
            raise TrialFailed(reason)
        self.count_again()
        self.prove(worker)
        self.judge(traced)

    def prove(self, worker: Worker) -> None:
        """Complete the proof of ranks that have ended."""
        worker.keep_columns()
        self.ranks = worker.finished()
        self._prove_after(inside=worker.inside)

    def judge(self, traced: Trace | None = None) -> None:
        """Judge what is proven."""
        self.status, self.reasons = self._judge(traced)

    def prepare(self, worker: Worker) -> None:
        """Bring the data into the trial's cache state; ranks that alone see them do it there."""
        if worker.inside:
            self._prepare_inside(worker, self._nodes[0])
        else:
            everywhere(self._nodes, lambda node: self._set_state(worker, node))

    def _prepare_software(self) -> None:
        """Bring what the ranks will start from into the trial's cache state, before they start."""
        found = environment.software(self.trial.case, self._settings.images)
        self._look_at(found.files, found.root)
        everywhere(self._nodes, lambda node: node.set_state(list, self._held))
        self.count()
        size = {"files": len(found.files), "bytes": found.nbytes}
        self.notes["software"] = {"root": str(found.root), **size}

    def count(self) -> None:
        """Begin to count what crosses the mount of the data."""
        everywhere(self._nodes, TrialNode.count)

    def count_again(self) -> None:
        """Stop counting it."""
        everywhere(self._nodes, TrialNode.count_again)
        self.notes["mount_bytes"] = cache_proof.added(node.moved for node in self._nodes)

    def _prepare_inside(self, worker: Worker, node: TrialNode) -> None:
        seen = worker.prepared()
        # warm data need not be cached a second time in the file that holds them
        if self.trial.cache == "cold":
            self._set_state(worker, node)
        node.proof = cache_proof.before(self.trial.cache, node.proof, seen)
        if self.trial.cache == "warm":
            node.proof = dataclasses.replace(node.proof, unheld="they lie inside an image")

    def _set_state(self, worker: Worker, node: TrialNode) -> None:
        node.set_state(lambda: worker.extents(node.name), self._held)

    def _locate_and_replay(self, worker: Worker) -> None:
        """Have the samples located, then read the same extents in the same order with fio."""
        worker.release()
        worker.results()
        extents, case = worker.extents(), self.trial.case
        everywhere(self._nodes, lambda node: self._set_state(worker, node))
        self.count()
        fios = [
            ceiling.Fio(
                worker.work / f"fio{node.name and number}", self._settings.limit_s,
                () if node.name else self._settings.enter, node.agent, node.name,
            )
            for number, node in enumerate(self._nodes)
        ]  # fmt: skip
        if self._stage.of_mount:
            (fio,) = fios
            self.ceiling = to_json(requests.run(requests.chosen(extents), fio, seed=case.seed))
            return
        readers = max(case.workers, 1) * case.world_size
        result = ceiling.run(
            ceiling.plan(extents, jobs=readers, batch=case.batch),
            *fios,
            mapped=registry.load("formats", case.format).mapped,
            read_ahead=bool(case.format_options.get("readahead", True)),
        )
        self.ceiling = to_json(result)

    def _traced(self, worker: Worker) -> contextlib.AbstractContextManager[Trace | None]:
        """Return what counts the ranks' system calls, where the trial is for that."""
        if not self._stage.traced:
            return contextlib.nullcontext()
        return self._agent.trace(worker.processes(), worker.work)

    def _prove_after(self, *, inside: bool) -> None:
        """Complete the proofs by what is resident now and what crossed the mount."""
        if self._stage.starts:
            everywhere(self._nodes, TrialNode.prove_started)
            self.notes["software"]["fetched"] = sum(node.fetched for node in self._nodes)
        elif self._place and inside:
            (node,) = self._nodes
            node.prove_after_inside(self.ranks, self._place)
        elif self.trial.cache != "-" and self._files:
            opened = self.ceiling.get("opened", 1)
            everywhere(
                self._nodes, lambda node: node.prove_after(self.ranks, self._by_fio(node), opened)
            )
        trainer = registry.load("trainers", self.trial.case.trainer).make
        programs = ""
        if self.runtime.get("form"):
            programs = "the image's own files"
        elif self._stage.trained and trainer.feeds_itself:
            programs = "the trainer's program"
        for node in self._nodes:
            node.proof = dataclasses.replace(node.proof, programs=programs, beyond=self._beyond)

    def _by_fio(self, node: TrialNode) -> IoCounters | None:
        """Return what fio read on a node, each byte once; None where the ranks themselves read."""
        if not self._stage.by_fio:
            return None
        parts = {part["node"]: part for part in self.ceiling.get("nodes", ())}
        found = parts.get(node.name, self.ceiling)
        nbytes = found.get("distinct_bytes", found["io_bytes"])
        return IoCounters(rchar=nbytes, read_bytes=found["storage_bytes"])

    def _judge(self, traced: Trace | None) -> Verdict:
        """Return (status, reasons), and note what of the ranks a reader should know."""
        status, reasons = self._standing()
        self.notes.update(rank_figures.note(self.ranks))
        if traced is not None and status == VALID:
            self.notes["calls"] = note = traced.note(self.ranks)
            if note["reason"]:
                return EXPLORATORY, (f"no calls are counted: {note['reason']}",)
        measured = self._stage.reads and self._stage.timed and not self._stage.starts
        if self._dataset.in_place and status == VALID and measured:
            return EXPLORATORY, (IN_PLACE,)
        return status, reasons

    def _standing(self) -> Verdict:
        trial, ranks = self.trial, self.ranks
        if errors := world.errors(ranks, trial.case.nodes):
            return FAILED, errors
        if parted := rank_figures.parted(ranks):
            return INVALID, (parted,)
        if self.ceiling.get("invalid"):
            return INVALID, (self.ceiling["invalid"],)
        if self._stage.on_host:
            return cache_state.worst([node.judge(ranks) for node in self._nodes])
        if wrong := sum(int(r.notes.get("wrong_digests", 0)) for r in ranks):
            return INVALID, (f"{wrong} samples are not the dataset's: run `iobench data verify`",)
        if trial.cache == "-":
            return VALID, ()
        if self._stage.contrasted and not sum(sum(r.steps.samples) for r in ranks):
            return INVALID, ("the loop saw no sample: fewer samples than one batch?",)
        running = rank_figures.running(ranks, self.slices)
        return cache_state.worst([node.judge(running) for node in self._nodes])


def _readers(trial: Trial, settings: TrialSettings) -> dict[str, NodeAgent]:
    """Return the agents of the nodes that read a trial's samples: its ranks', or fio's."""
    if trial.case.nodes == 1 or not stages.of(trial.stage).on_nodes:
        return settings.agents(trial)
    assert settings.nodes is not None
    return {a.node: a for a in settings.nodes.first(trial.case.nodes).agents}


def _files(trial: Trial, dataset: Dataset, place: Placement | None) -> list[Path]:
    """Return the files on this host whose pages are the data's."""
    if place and place.inside:
        return [Path(place.files)] if Path(place.files).is_file() else []
    return files_of(trial.case, dataset)
