"""One rank of one trial: join the driver, import, say Ready, wait for Go, measure, send the Result.

``python -m iobench.worker INVITATION`` is what launchers and runtimes start.  Python 3.9 and the
libraries of the case are all it needs.  Between ``Ready`` and ``Go`` the driver brings the page
cache into the wanted state and proves it; nothing of the dataset is open before ``Go``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import List, Optional, Tuple

from iobench.backends.loaders import _batches
from iobench.core import channel, clock, registry, stages
from iobench.core.cases import STEADY, Extent, Task, alike, to_json
from iobench.core.dataset import files_of, form_root, load_index, stored_sizes
from iobench.core.errors import IobenchError, plain
from iobench.core.order import epochs
from iobench.core.protocols import LoadRequest
from iobench.core.records import RankResult
from iobench.host import columns, parent_watch
from iobench.worker import cache, own_gpu, remote_loader, rendezvous
from iobench.worker.rank import RankRun

#: Of a folder for temporary files: multiprocessing puts sockets into it, at /pymp-xxxxxxxx/
#: listener-xxxxxxxx, whose path has 107 characters at most.
_LONGEST = 107 - 32


def main(argv: List[str]) -> int:
    """Join by the invitation at ``argv[0]``, run the task; exit status 1 where that fails."""
    born = clock.clock()
    invitation = Path(argv[0]).absolute()
    try:
        driver, task = rendezvous.join(invitation)
    except IobenchError as error:
        sys.exit(str(error))
    tempfile.tempdir = _short(invitation.parent)  # what an aborted worker leaves goes with it
    try:
        result = run(task, driver, born)
    except IobenchError as error:
        result = _failed(driver, f"{type(error).__name__}: {error}")
    except OSError as error:  # its last line is shown
        result = _failed(driver, f"{traceback.format_exc(limit=8)}\n{plain(error)}")
    except Exception:  # noqa: BLE001  (whatever a framework raises is this trial's result)
        result = _failed(driver, traceback.format_exc(limit=8))
    try:
        counts = columns.write(invitation.parent, result)
    except OSError as error:
        result, counts = _failed(driver, f"its columns cannot be written: {plain(error)}"), {}
    driver.send(channel.Result({**to_json(columns.bare(result)), "columns": counts}))
    if result.error and driver.world_size > 1:
        os._exit(1)  # MPI's own exit would wait for ranks that wait for this one
    return 1 if result.error else 0


def _short(folder: Path) -> str:
    """Return a name of a folder that is short enough, for as long as this process lives."""
    if len(str(folder)) <= _LONGEST:
        return str(folder)
    return f"/proc/{os.getpid()}/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY)}"


def run(task: Task, driver: rendezvous.Driver, born: float) -> RankResult:
    """Run this rank's part of ``task``; return what it measured."""
    stage = stages.of(task.trial.stage)
    own_gpu.choose(task.trial.case, driver.local_rank)
    far = _import_libraries(task)
    gc.freeze()  # a full collection of what the libraries made would take tens of ms in the loop
    imported = clock.clock()
    if stage.on_host or task.trial.cache not in ("cold", "warm", STEADY, "-"):
        request, _ = request_of(task, driver.rank, driver.world_size)
        driver.send(channel.Extents(_extents(request)))
    if stage.traced:
        parent_watch.let_trace()
    driver.send(channel.Ready())
    if task.inside:
        driver.expect(channel.Prepare)
        driver.send(
            cache.prepare(task.trial.cache, files_of(task.trial.case, task.dataset), driver.node)
        )
    driver.expect(channel.Go)
    request, digests = request_of(task, driver.rank, driver.world_size)
    job = RankRun(task, driver, request, digests, born, imported, far)
    try:
        result = job.result(*stage.run(job))
    finally:
        job.close()
    if task.inside:
        left = {cache.AFTER: cache.look(files_of(task.trial.case, task.dataset))}
        result = dataclasses.replace(result, notes={**result.notes, **left})
    return result


def request_of(task: Task, rank: int, world_size: int) -> Tuple[LoadRequest, List[str]]:
    """Return what the loader is asked for, and the digest of every sample of the dataset."""
    case = task.trial.case
    index = load_index(task.dataset)
    request = alike(
        LoadRequest,
        case,
        dataset=task.dataset,
        format_name=case.format,
        format=registry.format_of(case),
        root=form_root(task.dataset, case.folder),
        ids=epochs(
            task.trial.all_epochs,
            len(index.labels),
            case.order,
            seed=case.seed,
            rank=rank,
            world_size=world_size,
            batch=case.batch * (case.world_size // world_size),  # one for all: what all would read
            limit=case.samples,
            sharing=case.sharing,
        ),
        labels=index.labels,
        sizes=stored_sizes(task.dataset, case.folder, index.sizes),
        stage=stages.of(task.trial.stage).asks,
        decode_delay_s=task.decode_delay_s,
        rank=rank,
        world_size=world_size,
    )
    return request, index.digests


def _extents(request: LoadRequest) -> List[List[Extent]]:
    """Return where each sample lies, in order: what fio replays, what a cached fraction warms."""
    with contextlib.closing(request.format.open(request.dataset, request.root)) as reader:
        return [list(reader.extents(int(i))) for i in request.ids]


def _import_libraries(task: Task) -> Optional[remote_loader.RemoteLoader]:
    """Import what the case needs, so that start-up stays out of the loop and out of the proof.

    Return the other Python that the loader runs in, if any, its libraries imported too.
    """
    case, stage = task.trial.case, stages.of(task.trial.stage)
    feeds = stage.trained and getattr(
        registry.load("trainers", case.trainer).make, "feeds_itself", False
    )
    loads = stage.asks and not feeds
    python = remote_loader.python_of(case) if loads else ""
    # a tracer follows what is started after it came
    late = stage.in_process or stage.traced
    far = remote_loader.RemoteLoader(python, case) if python and not late else None
    members = registry.loading(case)
    if not loads or python:
        del members["loaders"]
    if not loads or (python and not stage.in_process):
        members.pop("decoders", None)
    if stage.trained:
        members["trainers"] = case.trainer
    modules = list(_batches.REQUIRES) if python and stage.in_process else []
    for axis, name in members.items():
        modules += registry.require(axis, name).requires
    for module in modules:
        importlib.import_module(module)
    if far is not None:
        far.wait_up()
    return far


def _failed(driver: rendezvous.Driver, message: str) -> RankResult:
    return RankResult(
        rank=driver.rank,
        world_size=driver.world_size,
        host=driver.node,
        pid=os.getpid(),
        error=message.strip(),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
