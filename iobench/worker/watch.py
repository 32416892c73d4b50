"""A user's own training loop, measured: ``for batch in iobench.watch(loader)``.

Nothing is changed or written unless a folder is named, or ``iobench watch`` or ``iobench tune``
started the script: then an order in the environment says which part is run, for how long, and with
which settings of the DataLoader.  Standard library and NumPy.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
from array import array
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from iobench.core.cases import OF_SCRIPT, Batch, Case, Dataset, Plan, Trial, to_json
from iobench.core.clock import clock
from iobench.core.records import (
    EXPLORATORY,
    CacheProof,
    IoCounters,
    RankResult,
    Record,
    Startup,
    Steps,
)
from iobench.host import files, fingerprint, io_counters
from iobench.host.interrupts import end_with
from iobench.worker.loop import warmup_steps, worth_going_on

#: Environment variable that holds an order, as JSON.
VARIABLE = "IOBENCH_WATCH"
#: Parts of a script: all of it, its steps on one batch that is there, its loader alone.
TRAIN, COMPUTE, LOAD = "train", "compute", "load"
#: Of a loader without a length: its steps, for what is said of a quarter of them; at most so many
#: of them are a warm-up.
STEPS, WARMUP = 64, 8
UNPROVEN = "measured in a script of the user's own: the page cache is as it was"


@dataclasses.dataclass(frozen=True)
class Order:
    """What a driver asks of a script; ``settings``: keywords of DataLoader, and ``threads``."""

    result: str
    driver: int
    stage: str = TRAIN
    seconds: float = 5.0
    least: float = 0.0
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def watch(loader: Iterable[Any], results: str = "") -> Iterator[Any]:
    """Yield the batches of ``loader`` and measure the loop around it, step by step.

    ``results``: a folder to keep the measurements in, for ``iobench explain``.  Under an order the
    process ends after the seconds asked for, so that nothing after the loop is run.
    """
    text = os.environ.get(VARIABLE, "")
    if text:
        yield from _ordered(loader, Order(**json.loads(text)))
        raise SystemExit(0)
    if not results:
        yield from loader
        return
    readings = _Readings()
    try:
        yield from readings.of(iter(loader))
    finally:
        _keep(Path(results), readings.result(loader), _case(loader))


class _Readings:
    """Clock readings of a loop: two a step, and the size of the batch."""

    def __init__(self) -> None:
        self._times = array("d"), array("d"), array("d")
        self._samples = array("q")
        self._epoch = 0  # steps of the first
        self._io = IoCounters()
        self._began = clock()

    def of(
        self,
        batches: Iterator[Any],
        *,
        seconds: float = 0.0,
        loader: Optional[Iterable[Any]] = None,
    ) -> Iterator[Any]:
        """Yield the batches; no more after so many ``seconds`` (0: all).

        ``loader``: gives the next epoch where one is shorter than that.  The time until its first
        batch counts as any other.
        """
        request, ready, done = self._times
        alive = _workers(batches)
        before = io_counters.snapshot(alive)
        self._began = start = now = clock()
        try:
            epoch: Optional[Iterator[Any]] = batches
            while epoch is not None:
                steps = len(done)
                for batch in epoch:
                    request.append(now)
                    ready.append(clock())
                    yield batch
                    self._samples.append(samples_of(batch))
                    now = clock()
                    done.append(now)
                    if seconds and now - start > seconds:
                        loader = None
                        break
                self._epoch = self._epoch or len(done)
                # one without a step has no more batches
                epoch = iter(loader) if loader is not None and len(done) > steps else None
                alive = _workers(epoch) or alive
            if done:
                done[-1] = _finished()
        finally:
            self._io = io_counters.difference(before, io_counters.snapshot(alive))

    def result(self, loader: Any) -> RankResult:
        """Return what was measured, of whole steps."""
        count, start = len(self._samples), self._began
        request, ready, done = ([t - start for t in times[:count]] for times in self._times)
        workers = int(getattr(loader, "num_workers", 0) or 0)
        ahead = workers * int(getattr(loader, "prefetch_factor", 0) or 0)
        warmup = warmup_steps(queue_batches=ahead, workers=workers, steps=count) if count else 0
        return RankResult(
            rank=0,
            world_size=1,
            host=socket.gethostname(),
            pid=os.getpid(),
            steps=Steps(request, ready, done, list(self._samples), [0] * count, warmup),
            startup=Startup(first_batch_s=ready[0] if ready else 0.0),
            io=self._io,
            began_s=start,
            fingerprint=fingerprint.collect(Path.cwd(), {"torch": "torch", "numpy": "numpy"}),
            notes={
                "queue_batches": ahead,
                "epoch_samples": sum(self._samples[: self._epoch or count]),
                "case": to_json(_case(loader)),
            },
        )


def _workers(batches: Optional[Iterator[Any]]) -> List[int]:
    """Return the processes of a DataLoader's epoch; those of earlier ones have been reaped."""
    return [worker.pid for worker in getattr(batches, "_workers", ())]


def samples_of(batch: Any) -> int:
    """Return how many samples a batch holds: the first tensor's, array's or list's length."""
    while True:
        if hasattr(batch, "shape"):
            return int(batch.shape[0]) if len(batch.shape) else 1
        if isinstance(batch, Mapping):
            batch = next(iter(batch.values()))
        elif isinstance(batch, (list, tuple)) and batch and not _plain(batch[0]):
            batch = batch[0]
        else:
            return len(batch) if hasattr(batch, "__len__") else 1


def _plain(value: Any) -> bool:
    return isinstance(value, (str, bytes, int, float))


def _finished() -> float:
    """Return the clock when a GPU, if the script uses one, has done its steps."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return clock()


def _ordered(loader: Iterable[Any], order: Order) -> Iterator[Any]:
    """Run the part of the loop that is asked for and write what was measured."""
    if os.getppid() == order.driver:  # else a launcher of the user's stands between
        end_with(order.driver)
    settings = dict(order.settings)
    if order.stage == COMPUTE and hasattr(loader, "num_workers") and _is_dataloader(loader):
        settings["num_workers"] = 0  # no worker reads ahead beside the steps
    found = adjusted(loader, settings)
    readings = _Readings()
    batches = iter(found)
    if order.stage == COMPUTE:
        first = next(batches)
        del batches
        batches = iter(lambda: first, object())
    measured = readings.of(batches, seconds=order.seconds, loader=found)
    if order.stage == LOAD:  # the body of the user's loop does not run
        for _ in measured:
            pass
    else:
        yield from measured if not order.least else _worth(measured, order, found)
    result = readings.result(found)
    files.write_text(Path(order.result), json.dumps(to_json(result)))


def _worth(measured: Iterator[Any], order: Order, loader: Any) -> Iterator[Any]:
    """Yield the batches that are measured, no more where they come too slowly to matter."""
    sized = (Batch(batch, None, range(samples_of(batch)), 0) for batch in measured)
    steps = len(loader) if hasattr(loader, "__len__") else STEPS
    kept = worth_going_on(sized, least=order.least, warmup=min(WARMUP, steps // 4), steps=steps)
    for batch in kept:
        yield batch.data
    measured.close()  # type: ignore[attr-defined]


def adjusted(loader: Any, settings: Mapping[str, Any]) -> Any:
    """Return a DataLoader like ``loader`` with other settings; itself where there are none.

    Raises TypeError for a loader of another kind.
    """
    if not settings:
        return loader
    import torch
    from torch.utils.data import DataLoader

    if not _is_dataloader(loader):
        raise TypeError(f"iobench can change a torch DataLoader's settings, not {type(loader)}'s")
    settings = dict(settings)
    if threads := settings.pop("threads", 0):
        torch.set_num_threads(threads)
    words: Dict[str, Any] = {
        name: getattr(loader, name)
        for name in (
            "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator",
            "multiprocessing_context", "persistent_workers", "prefetch_factor", "in_order",
        )
    }  # fmt: skip
    words.update(settings)
    if not words["num_workers"]:
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context"):
            del words[name]
        words["timeout"] = 0
    if loader.batch_sampler is not None:
        words["batch_sampler"] = loader.batch_sampler
    else:
        words.update(batch_size=loader.batch_size, sampler=_sampler(loader))
    return DataLoader(loader.dataset, **words)


def _is_dataloader(loader: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(loader, torch.utils.data.DataLoader)


def _sampler(loader: Any) -> Any:
    from torch.utils.data import IterableDataset

    return None if isinstance(loader.dataset, IterableDataset) else loader.sampler


def _case(loader: Any) -> Case:
    """Return the settings of a loader, by the names that a case has for them."""
    options = {} if getattr(loader, "in_order", True) else {"in_order": False}
    return Case(
        label=Path(sys.argv[0]).name or "script",
        trainer="torch",
        batch=int(getattr(loader, "batch_size", 0) or 1),
        workers=int(getattr(loader, "num_workers", 0) or 0),
        prefetch=int(getattr(loader, "prefetch_factor", 0) or 2),
        loader_options=options,
    )


def script_plan(case: Case, seconds: float, samples: int = 1) -> Tuple[Plan, Dataset]:
    """Return an empty plan for a script, and the dataset that stands for what it reads."""
    dataset = Dataset(os.getcwd(), case.label, samples, 0, 1, 0, "", OF_SCRIPT)
    plan = Plan(case.label, "", 1, seconds, dataset, (case,), (), phase=2, usual_budget_s=seconds)
    return plan, dataset


def _keep(folder: Path, result: RankResult, case: Case) -> None:
    """Write one more epoch's record as a suite of the folder, for `iobench explain`."""
    if not result.steps.done_s:
        return
    runs = folder / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    count = len(list(runs.glob("*.json"))) + 1
    trials = tuple(
        Trial(f"{n:04d}-watch-train", case, TRAIN, "warm", block=n) for n in range(1, count + 1)
    )
    plan, _ = script_plan(case, 1.0)
    record = script_record(trials[-1], result)
    files.write_text(runs / f"{trials[-1].id}.1.json", json.dumps(to_json(record)))
    plan = dataclasses.replace(plan, trials=trials)
    files.write_text(folder / "plan.json", json.dumps(to_json(plan), indent=1))


def script_record(trial: Trial, result: RankResult, attempt: int = 1) -> Record:
    """Return the record of a trial that a script ran."""
    return Record(
        trial=trial,
        attempt=attempt,
        status=EXPLORATORY,
        reasons=(UNPROVEN,),
        started="",
        wall_s=result.steps.done_s[-1] if result.steps.done_s else 0.0,
        cache=CacheProof(),
        ranks=(result,),
        host=result.host,
    )
