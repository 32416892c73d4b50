"""A hand-written loop (handwritten.py) as an arm that takes turns with iobench's own."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from iobench.core import dataset as datasets
from iobench.core.cases import Case, Dataset
from iobench.core.clock import clock
from iobench.core.errors import TrialFailed
from iobench.core.order import epochs, shard_buffer
from iobench.core.records import RankResult, Steps
from iobench.run.trial import Attempt
from iobench.worker import loop

HANDWRITTEN = Path(__file__).with_name("handwritten.py")
READY, BARRIER = "ready", "barrier"


def warmup_of(case: Case, steps: int) -> int:
    """Return how many steps iobench discards of a loop of so many."""
    per_worker = case.loader in ("torch", "webdataset", "grain")
    queued = case.prefetch * (case.workers if per_worker else 1)
    if case.loader == "spdl":  # and what its stages hold
        queued += 7 + -(-(case.workers + 4) // case.batch)
    return loop.warmup_steps(queue_batches=queued, workers=case.workers, steps=steps)


def steps_of(case: Case, began_s: float, done_s: list[float], samples: int) -> Steps:
    """Return the clock readings of a loop without a trainer as iobench stores its own.

    Raises TrialFailed where it saw other than whole batches.
    """
    if samples != case.batch * len(done_s):
        raise TrialFailed(f"{samples} samples in {len(done_s)} steps of {case.batch}")
    done = [t - began_s for t in done_s]
    return Steps(
        request_s=[0.0, *done[:-1]],
        ready_s=done,
        done_s=done,
        samples=[case.batch] * len(done),
        bytes=[0] * len(done),
        warmup=warmup_of(case, len(done)),
    )


class ByHand(Attempt):
    """An attempt whose process is the hand-written loop; all else is as of iobench's."""

    @contextlib.contextmanager
    def running(self, work: Path) -> Iterator[Any]:
        """Start the loop and wait until it is ready to open the data."""
        case, found = self.trial.case, self._dataset
        ids = epochs(
            self.trial.epochs, found.samples, case.order, seed=case.seed, batch=case.batch,
            limit=case.samples,
        )  # fmt: skip
        with self._held, started(case, found, ids, work, self._settings.limit_s) as worker:
            try:
                self.ready_s = worker.wait_ready()
                yield worker
            finally:
                self.ranks = worker.finished()


@contextlib.contextmanager
def started(
    case: Case, found: Dataset, ids: Any, work: Path, limit_s: float
) -> Iterator[HandWorker]:
    """Start the loop over these samples in ``work``; it and its processes are gone afterwards."""
    np.save(work / "ids.npy", ids)
    task = {
        "loader": case.loader,
        "format": case.format,
        "root": str(datasets.form_root(found, case.folder)),
        "index": str(Path(found.root, datasets.INDEX)),
        "ids": str(work / "ids.npy"),
        "batch": case.batch,
        "workers": case.workers,
        "prefetch": case.prefetch,
        "buffer": shard_buffer(case.order),
        **case.loader_options,
    }
    (work / "task.json").write_text(json.dumps(task))
    with open(work / "stderr", "wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, str(HANDWRITTEN), str(work / "task.json")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    with process:
        try:
            yield HandWorker(process, case, work, limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class HandWorker:
    """The loop's process, driven as :class:`~iobench.run.worker_process.Worker` is."""

    inside = False

    def __init__(
        self, process: subprocess.Popen[bytes], case: Case, work: Path, limit_s: float
    ) -> None:
        self.begun, self._limit_s = clock(), limit_s
        self.listener, self.holds = self, True
        self._process, self._case, self._work = process, case, work
        self._text = b""
        self._lines: list[str] = []
        self._result: tuple[RankResult, ...] = ()

    def wait_ready(self) -> float:
        """Wait until it has begun; return the seconds since it was started."""
        self._until(READY)
        return clock() - self.begun

    def processes(self) -> list[int]:
        return [self._process.pid]

    def release(self) -> None:
        """Let it open the data."""
        self._go_on(READY)

    def begin(self) -> None:
        """Let it go on from the barrier."""
        self._go_on(BARRIER)

    def arrived(self, until: float) -> bool:
        """Wait until it is at the barrier; False: the clock read ``until`` first."""
        while BARRIER not in self._lines:
            if clock() >= until:
                return False
            self._read(until)
        return True

    def keep_columns(self) -> None:
        """Do nothing: what grows with its steps comes with its result."""

    def results(self) -> tuple[RankResult, ...]:
        """Wait for its clock readings and for its end."""
        self._until("{")
        found = json.loads(next(line for line in self._lines if line[0] == "{"))
        self._result = (
            RankResult(
                rank=0,
                world_size=1,
                host=os.uname().nodename,
                pid=self._process.pid,
                began_s=found["began_s"],
                steps=steps_of(self._case, **found),
            ),
        )
        self._process.wait(self._limit_s)
        return self._result

    def finished(self) -> tuple[RankResult, ...]:
        return self._result

    def _go_on(self, word: str) -> None:
        self._lines.remove(word)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is seen where it is read
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()

    def _until(self, start: str) -> None:
        while not any(line.startswith(start) for line in self._lines):
            self._read(math.inf)

    def _read(self, until: float) -> None:
        """Take what it prints before the clock reads ``until``.  Raises TrialFailed at its end."""
        assert self._process.stdout is not None
        late = self.begun + self._limit_s
        wait_s = max(0.0, min(until, late) - clock())
        if select.select([self._process.stdout], [], [], wait_s)[0]:
            text = os.read(self._process.stdout.fileno(), 1 << 20)
            if not text:
                raise TrialFailed(f"the hand-written loop: {self._why()}")
            *lines, self._text = (self._text + text).split(b"\n")
            self._lines += [line.decode() for line in lines if line]
        elif clock() > late:
            raise TrialFailed(f"the hand-written loop ran longer than {self._limit_s:g} s")

    def _why(self) -> str:
        lines = (self._work / "stderr").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"ended with status {self._process.wait()}"
