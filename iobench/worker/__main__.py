"""One trial in this process: read a task, say ready, wait for go, measure, write one RankResult.

``python -m iobench.worker TASK.json`` is what launchers and runtimes start.  Python 3.9 and the
libraries of the case are all it needs.  Between ``ready`` and ``go`` the driver brings the page
cache into the wanted state and proves it; nothing of the dataset is open before ``go``.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import os
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import List, Optional, Tuple

from iobench import batching, bridge, inside, lifetime, registry, stages, timing
from iobench.dataset import form_root, load_index, stored_sizes
from iobench.errors import BackendUnavailable, IobenchError
from iobench.job import TRAINED, Job
from iobench.model import (
    IoCounters,
    RankResult,
    Startup,
    Task,
    task_from_json,
    to_json,
)
from iobench.order import sample_order
from iobench.protocols import LoadRequest

#: Of a folder for temporary files: multiprocessing puts sockets into it, at /pymp-xxxxxxxx/
#: listener-xxxxxxxx, whose path has 107 characters at most.
_LONGEST = 107 - 32


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
    if task.ranks not in (0, world_size):
        raise BackendUnavailable(
            f"launcher {task.trial.case.launcher!r} was asked for {task.ranks} ranks, and this one "
            f"knows of {world_size}: is it another MPI's? Put the one that the launcher is for "
            "first on PATH"
        )
    folder = Path(task.handshake)
    if len(str(folder)) <= _LONGEST:
        tempfile.tempdir = str(folder)  # what a worker leaves that is aborted goes with its trial
    far = _import_libraries(task)
    gc.freeze()  # a full collection of what the libraries made would take tens of ms in the loop
    imported = timing.clock()
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
    job = Job(task, rank, world_size, request, digests, born, imported, far)
    try:
        result = job.result(*stages.measure(job))
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
        sizes=stored_sizes(task.dataset, case.stored_form, index.sizes),
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


def _write_extents(request: LoadRequest, path: Path) -> None:
    """Write where each sample lies, in order: what fio replays, what a cached fraction warms."""
    reader = request.format.open(request.dataset, request.root)
    rows = [[tuple(e) for e in reader.extents(int(i))] for i in request.ids]
    reader.close()
    path.write_text(json.dumps(rows))


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


def _failed(task: Task, rank: int, world_size: int, message: str) -> RankResult:
    return RankResult(
        rank=rank,
        world_size=world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        steps=stages.EMPTY,
        startup=Startup(),
        io=IoCounters(),
        error=message.strip(),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
