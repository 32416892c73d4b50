"""Real ranks under a real driver, without a trial: scripts that speak the channel, or do not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from iobench.backends.runtimes.bare import Bare
from iobench.core.cases import Case, Dataset, Task, Trial
from iobench.core.channel import INVITATION
from iobench.core.clock import clock
from iobench.run.command import Started
from iobench.run.listener import Listener
from iobench.run.trial_settings import TrialSettings
from iobench.run.worker_process import Worker

ROOT = Path(__file__).parents[2]
DATASET = Dataset("/d", "t", 1, 1, 1, 1, "", "test")
#: What a script of a rank begins with; ``sys.argv[1]`` is its invitation.
HEAD = """
import ctypes, dataclasses, json, os, socket, subprocess, sys, time
from pathlib import Path
from iobench.core import channel, sockets
from iobench.core.channel import *
from iobench.worker import rendezvous
path = Path(sys.argv[1])
"""
JOIN = f"{HEAD}driver, task = rendezvous.join(path)\n"
RESULT = """
def result(error="", **fields):
    driver.send(Result(dict(
        rank=driver.rank, world_size=driver.world_size, host=driver.node, pid=os.getpid(),
        steps=dict(request_s=[], ready_s=[], done_s=[], samples=[], bytes=[]),
        startup={}, io={}, error=error, **fields,
    )))
"""


@contextlib.contextmanager
def started(
    work: Path,
    scripts: Sequence[str],
    *,
    limit_s: float = 30.0,
    host: str = "",
    world_size: int = 0,
) -> Iterator[Worker]:
    """Start one rank a script, as a launcher would; all are gone afterwards, which is asserted."""
    world_size = world_size or len(scripts)
    launcher = "local" if world_size == 1 else "mpirun"
    case = Case(launcher=launcher, world_size=world_size)
    trial = Trial("t", case, "load", "-")
    listener = Listener(work, case, launcher, world_size, host)
    listener.task = Task(trial, DATASET)
    argv = [sys.executable, "-c", LAUNCHER, str(work / INVITATION), *scripts]
    if world_size == 1:
        argv = [sys.executable, "-c", scripts[0], str(work / INVITATION)]
    with open(work / "stderr", "wb") as stderr:
        begun = clock()
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
        )  # fmt: skip
        started = Started(argv, {}, DATASET, "t", Bare(), ranks_apart=world_size > 1)
        settings = TrialSettings(limit_s)
        worker = Worker(process, listener, work, started, trial, settings, begun, False)
        try:
            yield worker
        finally:
            worker.end()
            left = [p for p in psutil.process_iter(["cmdline"]) if str(work) in str(p.info)]
            assert not psutil.wait_procs(left, timeout=5)[1]


LAUNCHER = """
import os, subprocess, sys
own = {"OMPI_COMM_WORLD_SIZE": str(len(sys.argv) - 2)}
ranks = [
    subprocess.Popen([sys.executable, "-c", script, sys.argv[1]],
                     env={**os.environ, **own, "OMPI_COMM_WORLD_RANK": str(rank)})
    for rank, script in enumerate(sys.argv[2:])
]
sys.exit(max(abs(rank.wait()) for rank in ranks))
"""
