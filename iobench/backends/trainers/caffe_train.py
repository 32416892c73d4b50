"""Real training by the program `caffe train`, which reads the data itself: as its users run it.

Its steps are read from its log, whose lines carry microseconds.  The log shows neither how long a
step waited for its data nor which samples a batch held: the record states both.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional

import numpy as np

from iobench.backends.caffe import layers, log, nets
from iobench.backends.caffe.prototxt import Message
from iobench.backends.trainers._caffe import SolverTrainer, judge, unused
from iobench.core.cases import Batch, Scalar
from iobench.core.clock import clock
from iobench.core.errors import BackendUnavailable, SpecError, TrialFailed
from iobench.core.members import TrainerBackend
from iobench.core.protocols import LoadRequest
from iobench.core.records import Steps
from iobench.core.stages import Measured

#: Steps of a replay that nothing ends before, and those that it has at least.
_MANY, _FEW = 2000, 3
_POLL_S = 0.01


class CaffeTrain(SolverTrainer):
    """One run of the program for each training; the solver and the net are made here."""

    feeds_itself = True
    _remark = (
        "`caffe train` tells no data wait apart: its steps hold it, so what is called contention "
        "here is wait and contention together; its queue fills before its first step, so that a "
        "cold epoch is short of up to prefetch batches, and its CPU time holds its start"
    )

    def _begin(self, threads: int, world_size: int, sharers: int) -> None:
        self._program = program()
        self._threads = threads or len(os.sched_getaffinity(0))
        self._facts: Dict[str, Scalar] = {}

    def step(self, batch: Batch) -> None:
        """Refuse: the program takes no batches."""
        raise SpecError("trainer caffe_train reads the data itself: use loader native with it")

    def feed(self, loader: Any, request: LoadRequest, *, warmup: int) -> Measured:
        """Train one epoch on what the native ``loader``'s layer reads of ``request``.

        Raises TrialFailed with Caffe's own reason when the program fails.
        """
        ids = list(request.batches())
        found = self._run(loader.layer(self._batch, rows=False), len(ids))
        return _measured(found, ids, np.asarray(request.sizes), warmup)

    def replay(self, request: LoadRequest, *, seconds: float) -> Measured:
        """Train on constant data that is filled once, for about ``seconds`` (0: 2000 steps).

        At a learning rate of 0: see :func:`iobench.backends.caffe.solver.running`.
        """
        found = self._run(layers.dummy(self._batch, self._shape), _MANY, seconds, frozen=True)
        ids = np.asarray(request.ids, np.int64)[: self._batch]
        sizes = np.zeros(int(ids.max(initial=0)) + 1, np.int64)
        return _measured(found, [ids] * len(found.done_s), sizes, 1)

    def describe(self) -> Mapping[str, Scalar]:
        """Return the net, its threads, the program, and facts of its last run."""
        known = {} if self._users else {"net": self._net_name}
        return {
            "kind": "caffe_train",
            **known,
            "batch": self._batch,
            "device": self.device,
            "threads": self._threads,
            "program": self._program,
            "wait_known": False,
            "remark": self._remark,
            **self._facts,
        }

    def _run(
        self, data: Message, steps: int, seconds: float = 0.0, *, frozen: bool = False
    ) -> log.TrainLog:
        """Run the program for ``steps`` steps, or end it after ``seconds``; return its log."""
        job = self._job(data, steps, display=1, frozen=frozen)
        with tempfile.TemporaryDirectory(prefix="iobench-caffe-") as name:
            argv = [self._program, "train", f"-solver={job.write(Path(name))}"]
            path = Path(name, "log")
            begun = clock()
            with _started(argv, path, self._threads) as process:
                if seconds:
                    _end_after(process, path, seconds)
                status = process.wait()
            took_s = clock() - begun
            text = path.read_text(errors="replace")
        if status:
            last = (text.strip().splitlines() or ["no output"])[-1]
            raise TrialFailed(log.fatal(text) or f"caffe train ended with status {status}: {last}")
        try:
            found = log.training(text)
        except ValueError as error:
            raise TrialFailed(f"the log of {self._program} cannot be read: {error}") from None
        if not found.done_s or (not seconds and len(found.done_s) < steps):
            raise TrialFailed(f"caffe train made {len(found.done_s)} of {steps} steps")
        self._facts = {
            "net": job.name,
            "parameters": job.parameters or None,
            **self._facts_of(found.losses),
            "outside_loop_s": took_s - found.done_s[-1],
            "starved_lines": found.starved,
        }
        return found


def program() -> str:
    """Return the path of the program caffe.  Raises BackendUnavailable where PATH has none."""
    found = shutil.which("caffe")
    if found is None:
        raise BackendUnavailable(
            "no program caffe on PATH: run `make caffe`, or set CAFFE_ROOT to a build of your own"
        )
    return found


@contextlib.contextmanager
def _started(argv: List[str], path: Path, threads: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start the program, its log in ``path``; it is gone afterwards."""
    number = {"OPENBLAS_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    talk = {"GLOG_logtostderr": "1", "GLOG_minloglevel": "0"}
    with open(path, "wb") as file:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
            env={**os.environ, **talk, **number},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _end_after(process: subprocess.Popen[bytes], path: Path, seconds: float) -> None:
    """Ask the program to end, as Caffe's signal handler does after a step, when time is up."""
    first: Optional[float] = None
    while process.poll() is None:
        steps = path.read_bytes().count(b"iter/s, ")
        if first is None and steps:
            first = clock()
        if first is not None and steps >= _FEW and clock() - first > seconds:
            process.send_signal(signal.SIGINT)
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(_POLL_S, seconds / 50))


def _measured(
    found: log.TrainLog, ids: List[np.ndarray], sizes: np.ndarray, warmup: int
) -> Measured:
    """Return the steps as the measured loop has them; nobody saw a wait, so there is none."""
    done = list(found.done_s)
    begun = [0.0, *done[:-1]]
    steps = Steps(
        request_s=begun,
        ready_s=begun,
        done_s=done,
        samples=[len(i) for i in ids],
        bytes=[int(sizes[i].sum()) for i in ids],
        warmup=warmup,
    )
    return Measured(steps, list(ids))


BACKEND = TrainerBackend(
    CaffeTrain,
    "real training by the program `caffe train`, on what loader native reads",
    stack="caffe",
    loaders=frozenset({"native"}),
    step_s=nets.step_s,
    shape=nets.input_shape,
    judge=judge,
    unused=unused,
)
