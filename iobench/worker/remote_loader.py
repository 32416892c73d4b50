"""Batches from a loader in another Python, through shared memory.

A loader may need another Python than the case's trainer.  ``RemoteLoader`` starts that Python,
where the loader runs as it does alone: its own workers, its own queue.  Pixels that its workers put
into shared memory stay there and are mapped here; others are copied into one of ``SLOTS`` slots of
a file in /dev/shm that has no name, so it is gone with the processes that map it.  All else crosses
as messages (see ``remote_loader_server``).  Both sides measure what that costs by one clock
(CLOCK_MONOTONIC).

The other process ends with all of its workers when the one that started it does, even by
``kill -9``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from iobench.core import errors, registry, transforms
from iobench.core.cases import Batch, Case
from iobench.core.clock import clock
from iobench.core.errors import BackendUnavailable, IobenchError, SpecError, TrialFailed
from iobench.core.protocols import LoadRequest
from iobench.core.records import IoCounters
from iobench.host import probes
from iobench.worker.remote_loader_server import APART, FILE, SLOTS, Channel, mapped, touched

#: Set for a worker outside any container whose loader is of another stack: that stack's Python, and
#: what differs in its environment (JSON: name -> value, null where it is not set).
PYTHON, RESTORE = "IOBENCH_LOADER_PYTHON", "IOBENCH_LOADER_RESTORE"
#: Seconds after which a silent process is checked, and those it has to stop its workers.
_CHECK_S, _CLOSE_S = 1.0, 20.0


def impossible(loader: str, image: str, *, container: bool) -> str:
    """Return an error message that lists alternatives, "" if the loader can serve the image.

    ``container``: the case sees the image's own files only, so no other Python is available.
    """
    home = registry.load("loaders", loader).stack
    serves = home != "" and registry.load("stacks", home).serves
    if home in ("", image) or (serves and not container):
        return ""
    where = f"image {image!r}" if container else f"the stack {image!r}"
    others = [
        n for n in registry.names("loaders") if registry.load("loaders", n).stack in ("", image)
    ]
    return (
        f"loader {loader!r} needs the Python of stack {home!r}, which {where} does not have; "
        f"use loader {', '.join(n for n in others if n != 'null')}"
        + (" there, or runtime bare" if serves else "")
    )


def python_of(case: Case) -> str:
    """Return the Python that the case's loader must be brought from, "" where it runs right here.

    Raises BackendUnavailable where that Python cannot be reached, SpecError for a walk over there.
    """
    home = registry.load("loaders", case.loader).stack
    if case.loader_options.get("walk") and case.loader_options.get(APART):
        raise SpecError("walk and apart together are not possible: leave one of them out")
    stack = registry.stack_of(case)
    if home in ("", stack):
        return sys.executable if case.loader_options.get(APART) else ""
    python = os.environ.get(PYTHON, "") if registry.load("stacks", home).serves else ""
    if not python:
        raise BackendUnavailable(impossible(case.loader, stack, container=True))
    return python


class RemoteLoader:
    """A loader in another Python; the process is started, and imports, when this is made.

    A batch's ``data`` is valid until the next batch is asked for: its slot may be filled again.
    """

    def __init__(self, python: str, case: Case) -> None:
        """``python``: path of the interpreter.  Raises BackendUnavailable if it cannot start."""
        self.python, self._case = python, case
        #: Fingerprint of the other Python's software; {} until the loader is closed.
        self.facts: Mapping[str, Any] = {}
        self._io = IoCounters()
        self._ready = self._open = self._done = False
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._copy_s, self._wake_s = array("d"), array("d")
        ours, theirs = multiprocessing.Pipe()
        self._channel = Channel(ours)
        self._incoming = select.poll()
        self._incoming.register(ours.fileno(), select.POLLIN)
        module = "iobench.worker.remote_loader_server"
        members = [f"{axis}={name}" for axis, name in registry.loading(case).items()]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [python, "-m", module, str(theirs.fileno()), *members],
                    stdin=subprocess.PIPE,  # held: the other process ends when it closes
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=_environment(python),
                    start_new_session=True,
                )
        except OSError as error:
            self.end()
            raise BackendUnavailable(f"cannot start {python}: {error.strerror}") from None

    def wait_up(self) -> None:
        """Wait until the loader's libraries are imported there; raises what that raised."""
        if not self._ready:
            self._receive("ready")
            self._ready = True

    def open(self, request: LoadRequest) -> RemoteLoader:
        """Make the loader for this request; return self.

        Raises what the loader's own ``make`` raises, BackendUnavailable if /dev/shm is full.
        """
        self.wait_up()
        options = {k: v for k, v in self._case.loader_options.items() if k != APART}
        plain: Any = str(request.root)  # versions of Python differ in how they pickle a path
        self._send("make", dataclasses.replace(request, root=plain, device="cpu"), options)
        queue, shares = self._receive("made")
        #: One slot is in the trainer's hands, the others wait.
        self.queue_batches = queue + SLOTS - 1
        self._count = len(request.ids) // request.batch
        self._shape = (request.batch, *transforms.transform(request.transform).shape)
        if request.stage == "load" and not shares:
            self._slots = self._share((SLOTS, *self._shape))
        self._before = self._channel.received
        self._open = True
        return self

    def _share(self, shape: Tuple[int, ...]) -> np.ndarray:
        """Return a float32 array of ``shape`` in shared memory, which both sides map."""
        nbytes = 4 * int(np.prod(shape))
        folder = probes.SHARED_MEMORY
        try:
            with tempfile.TemporaryFile(dir=folder) as memory:  # O_TMPFILE: it has no name
                os.posix_fallocate(memory.fileno(), 0, nbytes)
                self._send("slots", shape, file=memory.fileno())
                return touched(mapped(os.dup(memory.fileno()), shape))
        except OSError as error:
            raise BackendUnavailable(
                f"{folder} has no room for {nbytes >> 20} MiB, the batches that are handed over "
                f"({folder}: {error.strerror}): make it larger (containers: --shm-size), or use a "
                "smaller batch"
            ) from None

    def batches(self) -> Iterator[Batch]:
        """Let the loader begin and yield its batches, once.

        Raises what the loader there raises, and TrialFailed when its process has died.
        """
        self._send("begin")
        for k in range(self._count):
            if k:
                self._send("next")
            asked = clock()
            batch, where, begun, sent = self._receive("batch")
            if where == FILE:
                batch = batch._replace(data=mapped(self._channel.receive_file(), self._shape))
            elif where >= 0:
                batch = batch._replace(data=self._slots[where])
            self._copy_s.append(sent - begun)
            self._wake_s.append(clock() - max(asked, sent))
            yield batch
        self._done = True

    def close(self) -> None:
        """Close the loader there, reap its workers and take over their counters.  Idempotent.

        Raises TrialFailed where that fails after a whole epoch.
        """
        if not self._open:
            return
        self._open = False
        try:
            self._send("close")
            self._io, self.facts = self._receive("closed")
        except IobenchError:
            self.end()
            if self._done:  # else batches() has raised it, or nobody wanted the batch
                raise

    def end(self) -> None:
        """End and reap the other process and what it started.  Idempotent."""
        process, self._process = self._process, None
        self._channel.connection.close()
        if process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_CLOSE_S)
        if process.returncode != 0:  # its workers may have outlived it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def added_to(self, io: IoCounters) -> IoCounters:
        """Return this process's counters with the other's added, without the messages' bytes."""
        own = ("rchar", "read_bytes", "major_faults", "cpu_user_s", "cpu_sys_s")
        total = {name: getattr(io, name) + getattr(self._io, name) for name in own}
        total["rchar"] -= self._channel.received - self._before
        return dataclasses.replace(io, **total)

    def notes(self) -> Dict[str, Any]:
        """Return what the hand-over took, in seconds a batch, for the trial's record.

        ``copy``: into shared memory.  ``wake``: the message, where the loop was already waiting,
        and the mapping of what was not copied.
        """
        total = [a + b for a, b in zip(self._copy_s, self._wake_s)]
        if not total:
            return {}
        return {
            "handover_s": {
                "batches": len(total),
                "median": statistics.median(total),
                "mean": statistics.fmean(total),
                "copy_median": statistics.median(self._copy_s),
                "wake_median": statistics.median(self._wake_s),
            }
        }

    def _send(self, *message: Any, file: Optional[int] = None) -> None:
        """Send a message; raises the other process's error if it no longer listens."""
        try:
            self._channel.send(*message, file=file)
        except OSError:
            self._receive("")

    def _receive(self, word: str) -> List[Any]:
        """Return the values of the next message of this word.

        Raises the other process's error, and TrialFailed when it has ended.
        """
        while True:
            try:
                self._wait()
                found, *values = self._channel.receive()
            except (EOFError, OSError):
                raise TrialFailed(self._death()) from None
            if found == "error":
                raise _error(values[0], values[1], self._case.loader)
            if found == word:
                return values
            if found == "batch" and values[1] == FILE:  # on its way when the loader was left
                os.close(self._channel.receive_file())

    def _wait(self) -> None:
        """Wait for a message; raises EOFError when the other process has ended.

        Its workers may outlive it and hold its end of the connection open.
        """
        while not self._incoming.poll(1e3 * _CHECK_S):
            ended = self._process is None or self._process.poll() is not None
            if ended and not self._incoming.poll(0):
                raise EOFError

    def _death(self) -> str:
        what = f"the {self._case.loader} loader's process ({self.python})"
        if self._process is None:
            return f"{what} has been ended"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CHECK_S)
        code = self._process.returncode
        if code is None:
            return f"{what} closed its connection without an error message"
        if code < 0:
            memory = " (out of memory?)" * (-code == signal.SIGKILL)
            return f"{what} was killed by {signal.Signals(-code).name}{memory}"
        return f"{what} ended with status {code}; see the worker's standard error"


def _error(kind: str, message: str, loader: str) -> IobenchError:
    """Return the other process's exception: one of ours as it was, any other with its type."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, IobenchError):
        return known(message)
    return TrialFailed(f"the {loader} loader failed: {kind}: {message}")


def _environment(python: str) -> Dict[str, str]:
    """Return the far side's environment: what it was before this worker's stack changed it."""
    variables: Dict[str, Optional[str]] = dict(os.environ)
    if python != sys.executable:
        variables.update(json.loads(os.environ.get(RESTORE, "{}")))
    package = str(Path(__file__).absolute().parent.parent.parent)
    path = [package, *filter(None, (variables.get("PYTHONPATH") or "").split(os.pathsep))]
    variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
    variables["TMPDIR"] = tempfile.gettempdir()  # gone with the trial, as this worker's own
    return {name: value for name, value in variables.items() if value is not None}
