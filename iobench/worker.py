"""One trial in this process: read a task, say ready, wait for go, measure, write one RankResult.

``python -m iobench.worker TASK.json`` is what launchers and runtimes start.  Python 3.9 and the
libraries of the case are all it needs.  Between ``ready`` and ``go`` the driver brings the page
cache into the wanted state and proves it; nothing of the dataset is open before ``go``.
"""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import importlib
import inspect
import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from iobench import batching, bridge, inside, iocount, lifetime, registry, timing
from iobench.dataset import form_root, load_index, samples_digest
from iobench.errors import IobenchError
from iobench.fingerprint import collect
from iobench.model import (
    Batch,
    IoCounters,
    RankResult,
    Startup,
    Steps,
    Task,
    task_from_json,
    to_json,
)
from iobench.order import multiset_sum, sample_order
from iobench.protocols import CALLS_BEGIN, CALLS_END, Loader, LoadRequest

_EMPTY = Steps((), (), (), (), ())
#: Stages whose steps are the case's trainer's.
TRAINED = ("train", "compute", "alone")
#: A trainer that costs nothing would be replayed millions of times.
MAX_REPLAYS = 2000
#: Samples of a traced loop, in whole batches: one that every call of stops twice is slow.
CALLS_SAMPLES = 256


def main(argv: List[str]) -> int:
    """Run the task in ``argv[0]``; the exit status tells whether a result was written."""
    born = timing.clock()
    lifetime.end_with_driver(Path(argv[0]).with_name(lifetime.FIFO))
    task = task_from_json(json.loads(Path(argv[0]).read_text()))
    case = task.trial.case
    launcher = registry.load("launchers", case.launcher).make(**case.launcher_options)
    rank, world_size = launcher.rank(os.environ)
    try:
        result = run(task, rank, world_size, born)
    except IobenchError as error:
        result = _failed(task, rank, world_size, f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001  (whatever a framework raises is this trial's result)
        result = _failed(task, rank, world_size, traceback.format_exc(limit=8))
    path = Path(f"{task.result}.{rank}.json")
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(to_json(result)))
    partial.rename(path)
    if result.error and world_size > 1:
        os._exit(1)  # MPI's own exit would wait for ranks that wait for this one
    return 1 if result.error else 0


def run(task: Task, rank: int, world_size: int, born: float) -> RankResult:
    """Run one rank of ``task``; the caller writes what it returns."""
    far = _import_libraries(task)
    gc.freeze()  # a full collection of what the libraries made would take tens of ms in the loop
    imported = timing.clock()
    folder = Path(task.handshake)
    if task.trial.stage == "ceiling" or task.trial.cache not in ("cold", "warm", "-"):
        _write_extents(request_of(task, rank, world_size)[0], folder / f"extents.{rank}.json")
    parent = os.getppid()
    if task.trial.stage == "calls":
        lifetime.let_trace(folder / f"pid.{rank}")
    (folder / f"ready.{rank}").touch()
    if task.inside:
        lifetime.wait_for(folder / "prepare", parent)
        _prepare_inside(task, folder / f"prepared.{rank}")
    lifetime.wait_for(folder / "go", parent)
    request, digests = request_of(task, rank, world_size)
    job = _Job(task, rank, world_size, request, digests, born, imported, far)
    try:
        result = job.result(*_STAGES.get(task.trial.stage, _ladder)(job))
    finally:
        job.close()
    if task.inside:
        left = {inside.AFTER: inside.look(_files(task))}
        result = dataclasses.replace(result, notes={**result.notes, **left})
    return result


def request_of(task: Task, rank: int, world_size: int) -> Tuple[LoadRequest, List[str]]:
    """Return what the loader is asked for, and the digest of every sample of the dataset."""
    case, stage = task.trial.case, task.trial.stage
    index = load_index(task.dataset)
    request = LoadRequest(
        dataset=task.dataset,
        format_name=case.format,
        format=registry.load("formats", case.format).make(**case.format_options),
        root=form_root(task.dataset, case.stored_form),
        ids=sample_order(
            len(index.labels),
            case.order,
            seed=case.seed,
            epoch=0,
            rank=rank,
            world_size=world_size,
            batch=case.batch * (case.world_size // world_size),  # one for all: what all would read
            limit=case.samples,
            sharing=case.sharing,
        ),
        labels=index.labels,
        sizes=index.sizes,
        stage=stage if stage in ("read", "decode", "load") else "load",
        batch=case.batch,
        workers=case.workers,
        prefetch=case.prefetch,
        transform=case.transform,
        seed=case.seed,
        order=case.order,
        decode_delay_s=task.decode_delay_s,
        rank=rank,
        world_size=world_size,
        sharing=case.sharing,
    )
    return request, index.digests


class _Job:
    """The pieces that every stage's function shares, and the result they end in."""

    def __init__(
        self,
        task: Task,
        rank: int,
        world_size: int,
        request: LoadRequest,
        digests: List[str],
        born: float,
        imported: float,
        far: Optional[bridge.Bridge],
    ) -> None:
        self.task, self.rank, self.world_size, self.request = task, rank, world_size, request
        self.digests = digests
        self._born, self._imported = born, imported
        self.open_s = 0.0
        self._far = far

    def loader(self, **changes: Any) -> Loader:
        """Open the case's loader on the request, in the Python that it needs."""
        case = self.task.trial.case
        request = dataclasses.replace(self.request, **changes)
        python = bridge.python_of(case)
        if python:
            self._far = self._far or bridge.Bridge(python, case)
            return self._far.loader(request)
        make = registry.load("loaders", case.loader).make
        loader: Loader = make(request, **case.loader_options)
        return loader

    def close(self) -> None:
        """End the other Python, if there is one."""
        if self._far is not None:
            self._far.close()

    def trainer(self) -> Any:
        """Make the case's trainer, or the null one where nobody trains."""
        case = self.task.trial.case
        if self.task.trial.stage in TRAINED:
            make = registry.load("trainers", case.trainer).make
            given = {"batch": case.batch, "rank": self.rank, "world_size": self.world_size}
            takes = inspect.signature(make).parameters
            given = {name: value for name, value in given.items() if name in takes}
            return make(**given, **case.trainer_options)
        return registry.load("trainers", "null").make(batch=case.batch)

    def meet(self) -> None:
        """Wait until every rank is about to begin its loop."""
        if self.world_size > 1:
            lifetime.meet(Path(self.task.handshake), self.rank, self.world_size)

    def agree(self, value: int) -> int:
        """Return rank 0's value on every rank."""
        return lifetime.agree(Path(self.task.handshake), self.rank, value)

    def result(
        self,
        measured: timing.Measured,
        io: IoCounters,
        extra: Optional[Dict[str, Any]] = None,
    ) -> RankResult:
        """Assemble the rank's result from what a stage measured."""
        import numpy as np

        steps = measured.steps
        ids = np.concatenate(measured.ids) if measured.ids else np.zeros(0, np.int64)
        return RankResult(
            rank=self.rank,
            world_size=self.world_size,
            host=socket.gethostname(),
            pid=os.getpid(),
            steps=steps,
            startup=Startup(
                imports_s=self._imported - self._born,
                open_s=self.open_s,
                first_batch_s=steps.ready_s[0] if steps.ready_s else 0.0,
                process_s=lifetime.process_age_s() - (timing.clock() - self._imported),
            ),
            io=io,
            ids_digest=_ids_digest(np.sort(ids)),
            order_digest=_ids_digest(ids),
            ids_sum=multiset_sum(ids),
            began_s=measured.began_s,
            bytes_needed=int(self.request.sizes[ids].sum()) if len(ids) else 0,
            fingerprint={
                **collect(self.request.root),
                **({"loader": self._far.facts()} if self._far else {}),
            },
            **(extra or {}),
        )


def _ladder(job: _Job) -> Tuple[timing.Measured, IoCounters, Dict[str, Any]]:
    """read, decode, load, train: the measured loop over one epoch of the rank's samples."""
    stage = job.task.trial.stage
    opened = timing.clock()
    trainer = job.trainer()
    loader = job.loader(device=trainer.device)
    job.open_s = timing.clock() - opened
    steps = len(job.request.ids) // job.request.batch
    warmup = timing.warmup_steps(
        queue_batches=loader.queue_batches, workers=job.request.workers, steps=steps
    )
    job.meet()
    before = iocount.snapshot()
    if trainer.feeds_itself:
        measured = trainer.feed(loader, job.request, warmup=warmup)
    else:
        measured = timing.measure(loader.batches(), trainer, warmup=warmup)
    loader.close()
    io = bridge.with_far_side(iocount.difference(before, iocount.snapshot()), loader)
    notes = {
        "queue_batches": loader.queue_batches,
        "trainer": dict(trainer.describe()),
        "loader": dict(getattr(loader, "describe", dict)()),
        **bridge.notes(loader),
    }
    trainer.close()
    return measured, io, {"notes": notes if stage == "train" else {**notes, "trainer": {}}}


def _compute(job: _Job) -> Tuple[timing.Measured, IoCounters, Dict[str, Any]]:
    """compute: one resident batch, replayed; no byte is read inside the loop."""
    opened = timing.clock()
    trainer = job.trainer()
    batch = None if trainer.feeds_itself else _resident(job, trainer.device)
    job.open_s = timing.clock() - opened
    job.meet()
    before = iocount.snapshot()
    if batch is None:
        measured = trainer.replay(job.request, seconds=job.task.seconds)
    else:
        measured = timing.measure(_replay(batch, job), trainer, warmup=1)
    io = iocount.difference(before, iocount.snapshot())
    notes = {"trainer": dict(trainer.describe()), "replayed_samples": len(measured.ids[0])}
    trainer.close()
    return measured, io, {"notes": notes}


def _resident(job: _Job, device: str) -> Batch:
    """Return the first batch, its loader closed."""
    loader = job.loader(ids=job.request.ids[: job.request.batch], device=device, workers=1)
    batch = next(iter(loader.batches()))
    loader.close()
    return batch


def _replay(batch: Batch, job: _Job) -> Any:
    """Yield the batch for so many steps or seconds; ranks that wait for each other: all alike."""
    start, task = timing.clock(), job.task
    last = task.steps or MAX_REPLAYS
    for step in range(last):
        if step > 2 and task.seconds and job.world_size == 1:
            if timing.clock() - start > task.seconds:
                return
        elif step == 3 and task.seconds:  # several ranks: rank 0 says how many fit
            last = min(last, job.agree(3 + int(task.seconds * 3 / (timing.clock() - start))))
        if step >= last:
            return
        yield batch


def _digest(job: _Job) -> Tuple[timing.Measured, IoCounters, Dict[str, Any]]:
    """digest: the untimed twin; every sample's stored bytes hashed, and held against the index."""
    import numpy as np

    loader = job.loader(stage="read", digest=True)
    ids: List[Any] = []
    labels: List[Any] = []
    digests: List[str] = []
    for batch in loader.batches():
        ids.append(np.asarray(batch.ids))
        labels.append(np.asarray(batch.labels))
        digests.extend(batch.digests or ())
    loader.close()
    measured = timing.Measured(_EMPTY, ids)
    every = np.concatenate(ids).tolist()
    value = samples_digest(every, np.concatenate(labels).tolist(), digests)
    wrong = 0
    if job.task.trial.case.content == "jpeg":
        wrong = sum(job.digests[i] != d for i, d in zip(every, digests))
    return measured, IoCounters(), {"samples_digest": value, "notes": {"wrong_digests": wrong}}


def _probe(job: _Job) -> Tuple[timing.Measured, IoCounters, Dict[str, Any]]:
    """probe: no workers, queue of one; where a sample's time goes, and what crossed the mount."""
    probe = registry.load("loaders", job.task.trial.case.loader).probe
    samples = job.task.steps or min(256, len(job.request.ids))
    before = iocount.snapshot()
    times = probe(job.request, samples)
    return (
        timing.Measured(_EMPTY, [job.request.ids[:samples]]),
        iocount.difference(before, iocount.snapshot()),
        {"probe": {k: list(v) for k, v in times.items()}},
    )


def _calls(job: _Job) -> Tuple[timing.Measured, IoCounters, Dict[str, Any]]:
    """calls: the loop of ``load`` on some whole batches, marked for the driver, which traces it."""
    import numpy as np

    batch = job.request.batch
    samples = max(batch, min(CALLS_SAMPLES, len(job.request.ids)) // batch * batch)
    loader = job.loader(ids=job.request.ids[:samples])
    os.access(CALLS_BEGIN, os.F_OK)
    ids = [np.asarray(batch.ids) for batch in loader.batches()]
    os.access(CALLS_END, os.F_OK)
    loader.close()
    return timing.Measured(_EMPTY, ids), IoCounters(), {"notes": {"samples": sum(map(len, ids))}}


def _extents(job: _Job) -> Tuple[timing.Measured, IoCounters, Dict[str, Any]]:
    """ceiling: the samples that fio reads; their extents were written before ``ready``."""
    return timing.Measured(_EMPTY, [job.request.ids]), IoCounters(), {}


def _write_extents(request: LoadRequest, path: Path) -> None:
    """Write where each sample lies, in order: what fio replays, what a cached fraction warms."""
    reader = request.format.open(request.dataset, request.root)
    rows = [[tuple(e) for e in reader.extents(int(i))] for i in request.ids]
    reader.close()
    path.write_text(json.dumps(rows))


_STAGES = {
    "compute": _compute, "alone": _compute, "digest": _digest, "probe": _probe, "calls": _calls,
    "ceiling": _extents,
}  # fmt: skip


def _import_libraries(task: Task) -> Optional[bridge.Bridge]:
    """Import what the case needs, so that start-up stays out of the loop and out of the proof.

    Return the other Python that the loader runs in, if any, its libraries imported too.
    """
    case, stage = task.trial.case, task.trial.stage
    axes = [("formats", case.format)]
    trains = stage in TRAINED
    feeds = trains and getattr(registry.load("trainers", case.trainer).make, "feeds_itself", False)
    loads = stage != "ceiling" and not feeds  # ceiling only says where the samples lie
    python = bridge.python_of(case) if loads else ""
    # a tracer follows what is started after it came
    far = bridge.Bridge(python, case) if python and stage not in ("probe", "calls") else None
    if loads and not python:
        axes.append(("loaders", case.loader))
    if trains:
        axes.append(("trainers", case.trainer))
    modules = list(batching.REQUIRES) if python and stage == "probe" else []
    for axis, name in axes:
        modules += registry.require(axis, name).requires
    for module in modules:
        importlib.import_module(module)
    if far is not None:
        far.wait_up()
    return far


def _prepare_inside(task: Task, path: Path) -> None:
    """Bring the page cache into the trial's state, as the driver does where it sees the files."""
    text = json.dumps(inside.prepare(task.trial.cache, _files(task)))
    partial = path.with_suffix(".tmp")
    partial.write_text(text)
    partial.rename(path)


def _files(task: Task) -> List[Path]:
    case = task.trial.case
    form = registry.load("formats", case.format).make(**case.format_options)
    files: List[Path] = form.files(task.dataset, form_root(task.dataset, case.stored_form))
    return files


def _ids_digest(ids: Any) -> str:
    return hashlib.blake2b(ids.astype("<i8").tobytes(), digest_size=16).hexdigest()


def _failed(task: Task, rank: int, world_size: int, message: str) -> RankResult:
    return RankResult(
        rank=rank,
        world_size=world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        steps=_EMPTY,
        startup=Startup(),
        io=IoCounters(),
        error=message.strip(),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
