"""Batches from a loader of another Python, through shared memory.

The torch DataLoader needs a newer Python than Caffe's.  A ``Bridge`` starts that Python, where the
loader runs as it does alone: its own workers, its own queue.  Pixels that its workers made in
shared memory stay where they are, and are mapped here; those of other loaders are copied into one
of ``SLOTS`` places of a nameless file that both processes map.  A few bytes a batch cross a socket.
What that costs is measured on both sides by one clock (CLOCK_MONOTONIC).

The far side is :mod:`iobench.bridge_far`.  It ends with all of its workers when the process that
started it does, even by ``kill -9``, and nothing stays in /dev/shm: the file never had a name.

Worker side: Python 3.9, NumPy and the standard library.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import mmap
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from iobench import bridge_far, errors, registry
from iobench.bridge_far import BATCH, SLOTS, Layout
from iobench.errors import BackendUnavailable, IobenchError, SpecError, TrialFailed
from iobench.model import Batch, Case, IoCounters, to_json
from iobench.protocols import LoadRequest
from iobench.timing import clock

#: Set for a worker outside any container: the Python that has torch, and what its environment was
#: before the worker's stack changed it (JSON: name -> value, null where it was not set).
PYTHON, RESTORE = "IOBENCH_TORCH_PYTHON", "IOBENCH_TORCH_RESTORE"
_TORCH = "torch"
_SHARED_MEMORY = "/dev/shm"
#: Seconds between looks whether the far side is still alive.
_ALIVE_S = 1.0
#: Seconds that the far side has to stop its workers.
_CLOSE_S = 20.0
#: Fields of a request that do not cross as they are; the far side has no device.
_OTHERS = ("dataset", "format", "root", "ids", "labels", "sizes", "device")


def impossible(loader: str, image: str, *, container: bool) -> str:
    """Return why a loader cannot serve a case in this image, with what can; "" where it can.

    ``container``: the case sees the image's own files only, so no other Python can be reached.
    """
    home = registry.load("loaders", loader).image
    if home in ("", image) or (home == _TORCH and not container):
        return ""
    where = f"image {image!r}" if container else f"the stack {image!r}"
    others = [
        n for n in registry.names("loaders") if registry.load("loaders", n).image in ("", image)
    ]
    return (
        f"loader {loader!r} needs the Python of stack {home!r}, which {where} does not have; "
        f"use loader {', '.join(n for n in others if n != 'null')}"
        + (" there, or runtime bare" if home == _TORCH else "")
    )


def python_of(case: Case) -> str:
    """Return the Python that the case's loader must be brought from, "" where it runs right here.

    Raises BackendUnavailable where that Python cannot be reached, SpecError for a walk over there.
    """
    home = registry.load("loaders", case.loader).image
    if {"walk", bridge_far.APART} <= {n for n, given in case.loader_options.items() if given}:
        raise SpecError("walk and apart together are not possible: leave one of them out")
    if home in ("", case.image):
        return sys.executable if case.loader_options.get(bridge_far.APART) else ""
    python = os.environ.get(PYTHON, "") if home == _TORCH else ""
    if not python:
        raise BackendUnavailable(impossible(case.loader, case.image, container=True))
    return python


class Bridge:
    """Another Python that runs one loader once.  It is started, and imports, when this is made."""

    def __init__(self, python: str, case: Case) -> None:
        """Raises BackendUnavailable where it cannot be started."""
        self.python = python
        self._case = case
        self._up = False
        self._facts: Dict[str, Any] = {}
        self._process: Optional[subprocess.Popen[bytes]] = None
        try:
            # O_TMPFILE: it has no name
            self._memory: Any = tempfile.TemporaryFile(dir=_SHARED_MEMORY)  # noqa: SIM115
        except OSError as error:
            raise BackendUnavailable(
                f"no shared memory for the {case.loader} loader of another Python: "
                f"{_SHARED_MEMORY}: {error.strerror}"
            ) from None
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(_ALIVE_S)
        handed = (theirs.fileno(), self._memory.fileno())
        argv = [python, "-m", "iobench.bridge_far", *map(str, handed), case.loader, case.format]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,  # held: the far side ends when it closes
                    stdout=subprocess.DEVNULL,
                    pass_fds=handed,
                    env=_environment(python),
                    start_new_session=True,
                )
        except OSError as error:
            self.close()
            raise BackendUnavailable(f"cannot start {python}: {error.strerror}") from None

    def wait_up(self) -> None:
        """Return when the loader's libraries are imported there; raises what that raised."""
        if not self._up:
            self.receive(bridge_far.UP)
            self._up = True

    def loader(self, request: LoadRequest) -> BridgedLoader:
        """Have the case's loader made there, on this request."""
        self.wait_up()
        return BridgedLoader(self, request)

    def facts(self) -> Mapping[str, Any]:
        """Return the fingerprint of the far side's software: known once its loader is closed."""
        return self._facts

    def learn(self, facts: Mapping[str, Any]) -> None:
        """Keep what the far side says of itself."""
        self._facts = dict(facts)

    def close(self) -> None:
        """End and reap the far side and what it started; harmless twice."""
        process, self._process = self._process, None
        self._channel.close()
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_CLOSE_S)
            if process.returncode != 0:  # its workers may have outlived it
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._memory.close()

    # -- what the loader below says to the far side ---------------------------------------------

    def ask(self, request: LoadRequest) -> Tuple[int, bool, List[Dict[str, Any]]]:
        """Have the loader made; return its queue's batches, whether it shares, and the slots."""
        layout = Layout(len(request.ids), len(request.labels))
        self._room(layout.nbytes())
        head = layout.head(self._memory.fileno())
        for name in head:
            head[name][:] = getattr(request, name)
        plain = [f.name for f in dataclasses.fields(request) if f.name not in _OTHERS]
        document = {name: getattr(request, name) for name in plain}
        document.update(
            dataset=to_json(request.dataset),
            root=str(request.root),
            samples=layout.samples,
            total=layout.total,
            format_options=dict(self._case.format_options),
            loader_options={
                k: v for k, v in self._case.loader_options.items() if k != bridge_far.APART
            },
        )
        self.send(json.dumps(document).encode())
        made = json.loads(self.receive(bridge_far.MADE)[0])
        slot = bridge_far.slot_of(request, shares=made["shares"])
        self._room(layout.nbytes(slot))
        slots = layout.slots(self._memory.fileno(), slot)
        self.send(bridge_far.READY)
        return int(made["queue_batches"]), bool(made["shares"]), slots

    def _room(self, nbytes: int) -> None:
        try:
            os.posix_fallocate(self._memory.fileno(), 0, nbytes)
        except OSError as error:
            raise BackendUnavailable(
                f"{_SHARED_MEMORY} has no room for {nbytes >> 20} MiB, the batches that are "
                f"handed over ({error.strerror}): make it larger (containers: --shm-size), or use "
                "a smaller batch"
            ) from None

    def send(self, packet: bytes) -> None:
        """Send a packet; raises what the far side raised, where it no longer listens."""
        try:
            self._channel.send(packet)
        except OSError:
            self.receive("")  # says why

    def receive(self, kind: str) -> Tuple[bytes, List[int]]:
        """Return body and files of the next packet of this kind; raise what the far side raised."""
        while True:
            try:
                packet, files, _, _ = socket.recv_fds(self._channel, bridge_far.PACKET, 1)
            except socket.timeout:
                # its workers hold its end of the socket too, so its death need not close that
                if self._process is None or self._process.poll() is not None:
                    raise TrialFailed(self._death()) from None
                continue
            except ConnectionResetError:
                continue  # it left words of ours unread, and may have left words of its own
            except OSError:
                packet, files = b"", []
            if not packet:
                raise TrialFailed(self._death())
            found = packet[:1].decode()
            if found == bridge_far.ERROR:
                raise _error(json.loads(packet[1:]), self._case.loader)
            if found == kind:
                return packet[1:], files
            for file in files:  # what was under way when the loader was left early
                os.close(file)

    def _death(self) -> str:
        what = f"the {self._case.loader} loader's process ({self.python})"
        process = self._process
        if process is None:
            return f"{what} has been ended"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ALIVE_S)
        code = process.returncode
        if code is None:
            return f"{what} closed its end without a word"
        if code < 0:
            return f"{what} was killed by {signal.Signals(-code).name} (out of memory?)"
        return f"{what} ended with status {code}; its words are on the worker's standard error"


class BridgedLoader:
    """A loader of another Python, as a loader of this one.

    A batch's ``data`` is valid until the next batch is asked for: its slot may be filled again.
    """

    def __init__(self, bridge: Bridge, request: LoadRequest) -> None:
        """Raises what the loader's own ``make`` raises, and BackendUnavailable without room."""
        self._bridge = bridge
        self._count = len(request.ids) // request.batch
        self._shape = bridge_far.shape_of(request)
        queue, self._shares, self._slots = bridge.ask(request)
        # one slot is in the trainer's hands, the others wait
        self.queue_batches = queue + SLOTS - 1
        #: What the far side read and computed since the loop began.
        self.io = IoCounters()
        self._open, self._done = True, False
        self._copy_s, self._wake_s = array("d"), array("d")

    def batches(self) -> Iterator[Batch]:
        """Let the loader begin and yield its batches, once.

        Raises what the loader there raises, and TrialFailed when its process has died.
        """
        bridge = self._bridge
        bridge.send(bridge_far.GO)
        for k in range(self._count):
            if k:
                bridge.send(bridge_far.NEXT)  # the batch before is done with: its slot is free
            asked = clock()
            body, files = bridge.receive(bridge_far.BATCH_KIND)
            slot, nbytes, begun, sent = BATCH.unpack(body)
            batch = self._batch(self._slots[slot], nbytes, files)
            self._copy_s.append(sent - begun)
            self._wake_s.append(clock() - max(asked, sent))
            yield batch
        self._done = True

    def _batch(self, slot: Mapping[str, Any], nbytes: int, files: List[int]) -> Batch:
        digests = slot.get("digests")
        return Batch(
            self._mapped(files[0]) if files else slot.get("data"),
            slot["labels"].copy(),
            slot["ids"].copy(),  # the measured loop keeps them
            nbytes,
            None if digests is None else [d.decode() for d in digests],
        )

    def _mapped(self, file: int) -> Any:
        """Return the pixels that a file of shared memory begins with; they keep it."""
        count = int(np.prod(self._shape))
        try:
            memory = mmap.mmap(file, 4 * count)
        finally:
            os.close(file)
        return np.frombuffer(memory, np.float32, count).reshape(self._shape)

    def close(self) -> None:
        """Have the loader closed, its workers reaped and their I/O told; harmless twice.

        Raises TrialFailed where that fails after a whole epoch.
        """
        if not self._open:
            return
        self._open = False
        try:
            self._bridge.send(bridge_far.CLOSE)
            self.io = IoCounters(**json.loads(self._bridge.receive(bridge_far.CLOSED)[0]))
            self._bridge.learn(json.loads(self._bridge.receive(bridge_far.FACTS)[0]))
        except IobenchError:
            self._bridge.close()
            if self._done:  # else it was said where a batch was due, or nobody wanted the batch
                raise

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


def notes(loader: Any) -> Dict[str, Any]:
    """Return what a record notes of a bridged loader; {} of any other."""
    return loader.notes() if isinstance(loader, BridgedLoader) else {}


def with_far_side(io: IoCounters, loader: Any) -> IoCounters:
    """Return this process's counters with those of a bridged loader added; others as they are."""
    if not isinstance(loader, BridgedLoader):
        return io
    own = ("rchar", "read_bytes", "major_faults", "cpu_user_s", "cpu_sys_s")
    return dataclasses.replace(io, **{n: getattr(io, n) + getattr(loader.io, n) for n in own})


def _error(document: Mapping[str, str], loader: str) -> IobenchError:
    """Return the far side's exception: one of ours as it was, any other with its type's name."""
    kind = getattr(errors, document["type"], None)
    if isinstance(kind, type) and issubclass(kind, IobenchError):
        return kind(document["message"])
    return TrialFailed(f"the {loader} loader failed: {document['type']}: {document['message']}")


def _environment(python: str) -> Dict[str, str]:
    """Return the far side's environment: what it was before this worker's stack changed it."""
    variables: Dict[str, Optional[str]] = dict(os.environ)
    if python != sys.executable:
        variables.update(json.loads(os.environ.get(RESTORE, "{}")))
    package = str(Path(__file__).absolute().parent.parent)
    path = [package, *filter(None, (variables.get("PYTHONPATH") or "").split(os.pathsep))]
    variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
    variables["TMPDIR"] = tempfile.gettempdir()  # gone with the trial, as this worker's own
    return {name: value for name, value in variables.items() if value is not None}
