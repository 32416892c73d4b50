"""The driver's end of the control channel: accepts a trial's ranks and talks with all of them.

Every wait is bounded and blocks on file descriptors.
"""

from __future__ import annotations

import selectors
from multiprocessing import connection
from pathlib import Path
from typing import Any, cast

from iobench.core import channel, sockets
from iobench.core.cases import Case, Task, to_json
from iobench.core.channel import (
    Barrier,
    ChannelError,
    ControlChannel,
    ControlMessage,
    Hello,
    M,
    Result,
)
from iobench.core.clock import clock
from iobench.core.errors import TrialFailed
from iobench.run import ranks
from iobench.run.door import Door, refuse

#: What a rank sends once at most, and the driver keeps.
_KEPT = (Hello, channel.Extents, channel.Ready, channel.Prepared, Barrier, Result)

#: Ranks that an error names.
NAMED = 8
#: Files that the driver has open beside two connections a rank.
_OTHER_FILES = 200
#: Ranks of one node begin together this long after the last one has come: on busy cores they wake
#: milliseconds apart.
_BEGIN_AFTER_S = 0.005


class Listener:
    """Connections to the ranks of one trial, and what each of them has sent."""

    def __init__(self, folder: Path, case: Case, launcher: str, world_size: int, host: str = ""):
        """Listen in ``folder``, or on a TCP port of ``host``; write the invitation into ``folder``.

        ``launcher``: name of the case's, or of the one that is used in its place.  Raises
        TrialFailed where no socket can be made, or as many as there are ranks.
        """
        self._launcher, self._world_size = launcher, world_size
        files = 2 * world_size + _OTHER_FILES
        if not sockets.allow_files(files):
            raise TrialFailed(
                f"{world_size:,} ranks need {files:,} open files in the driver, and its hard limit "
                "is lower: raise it (`ulimit -Hn`) on this node"
            )
        options = case.launcher_options if launcher == case.launcher else {}
        try:
            self._door = door = Door(folder, host)
            channel.invite(folder, channel.Invitation(door.address, door.key, launcher, options))
        except OSError as error:
            raise TrialFailed(
                f"no socket can be made in {folder} ({error.strerror}): set TMPDIR to a folder on "
                "a local disk"
            ) from None
        self.task: Task | None = None
        #: Ranks wait at a barrier for :meth:`begin`, even when all have come.
        self.holds = False
        self._lines: dict[ControlChannel, int] = {}
        self._ready = selectors.DefaultSelector()
        self._kept: dict[type[Any], dict[int, Any]] = {kind: {} for kind in _KEPT}
        #: The first rank that closed its connection without a result, or sent an error as one.
        self.failing = ""
        #: What that rank did, and whether it was its node that went.
        self.failed_how, self.lost = "", False
        self._across = case.nodes > 1

    def from_all(self, kind: type[M]) -> bool:
        """Return whether every rank has sent its message of this kind."""
        return len(self._kept[kind]) == self._world_size

    def kept(self, kind: type[M]) -> list[M]:
        """Return the messages of this kind that have come, by rank."""
        return [message for _, message in sorted(self._kept[kind].items())]

    def missing(self) -> str:
        """Return who has not said hello: ``worker``, ``rank 1 of 2`` ..."""
        return self._without(Hello)

    def unfinished(self) -> str:
        """Return who has sent no result, of several ranks some of which have; "" else."""
        return self._without(Result) if self._kept[Result] else ""

    def _without(self, kind: type[ControlMessage]) -> str:
        absent = [r for r in range(self._world_size) if r not in self._kept[kind]]
        named = [self._name(rank) for rank in absent[:NAMED]]
        more = [f"{len(absent) - NAMED} more"] if len(absent) > NAMED else []
        return ", ".join([*named, *more])

    def send(self, message: ControlMessage, *, but: int = -1) -> None:
        """Send a message to every rank ``but`` one.  One that has gone is seen when it is read."""
        for line, rank in list(self._lines.items()):
            if rank != but:
                try:
                    line.send(message)
                except channel.ChannelClosed:
                    continue
                except ChannelError as error:
                    raise TrialFailed(f"{self._name(rank)} {error}") from None

    def serve(self, sentinel: Any, timeout_s: float) -> bool:
        """Take what has come, waiting for it at most this long.

        Return True when ``sentinel`` is ready and nothing else is.  Raises TrialFailed for what is
        no rank's message.
        """
        ends = [self._door, self._ready, sentinel]  # so many, however many ranks there are
        found: list[Any] = connection.wait(ends, max(timeout_s, 0.0))
        if self._ready in found:
            for key, _ in self._ready.select(0):
                self._take(cast(ControlChannel, key.fileobj))
        if self._door in found:
            for line, hello in self._door.admit():
                self._greet(line, hello)
        return found == [sentinel]

    def close(self) -> None:
        """Close everything: what still runs of the ranks ends by that."""
        self._door.close()
        self._ready.close()
        for line in self._lines:
            line.close()

    def _greet(self, line: ControlChannel, hello: Hello | channel.AgentHello) -> None:
        if isinstance(hello, channel.AgentHello):
            reason = "an agent connected where ranks do"
        elif hello.world_size != self._world_size:
            reason = (
                f"launcher {self._launcher!r} was asked for {self._world_size} ranks, and this one "
                f"knows of {hello.world_size}: is it another MPI's? Put the one that the launcher "
                "is for first on PATH"
            )
        elif hello.rank in self._kept[Hello] or not 0 <= hello.rank < self._world_size:
            reason = f"two processes say that they are rank {hello.rank}"
        else:
            assert self.task is not None
            self._kept[Hello][hello.rank] = hello
            self._lines[line] = hello.rank
            self._ready.register(line, selectors.EVENT_READ)
            try:
                line.send(channel.Assignment(to_json(self.task)))
            except channel.ChannelClosed:
                pass  # that is seen when it is read
            except ChannelError as error:
                raise TrialFailed(f"{self._name(hello.rank)} {error}") from None
            return
        refuse(line, reason)
        raise TrialFailed(reason)

    def _take(self, line: ControlChannel) -> None:
        """Take a message of a rank's."""
        rank = self._lines[line]
        try:
            message = line.receive()
            kept = self._kept.get(type(message))
            if isinstance(message, channel.Agree) and rank == 0:
                self.send(message, but=rank)
            elif kept is None or rank in kept or isinstance(message, Hello):
                raise ChannelError(f"sent {type(message).__name__} where none was due")
            else:
                kept[rank] = message
        except channel.ChannelClosed as error:
            del self._lines[line]
            self._ready.unregister(line)
            line.close()
            if rank not in self._kept[Result]:
                self.lost = self.lost or (isinstance(error, channel.NodeLost) and not self.failing)
                self._fail(rank, str(error))
            return
        except ChannelError as error:
            raise TrialFailed(f"{self._name(rank)} {error}") from None
        if isinstance(message, Result) and message.result.get("error"):
            self._fail(rank, "failed")
        if isinstance(message, Barrier) and self.from_all(Barrier) and not self.holds:
            self.begin(clock() + _BEGIN_AFTER_S if self._door.local else None)

    def begin(self, at: float | None = None) -> None:
        """Let the ranks go on that wait at the barrier."""
        self._kept[Barrier].clear()
        self.send(Barrier(at))

    def _fail(self, rank: int, how: str) -> None:
        if not self.failing:
            self.failing, self.failed_how = self._name(rank), how

    def _name(self, rank: int) -> str:
        return ranks.name(rank, self._world_size, self.places().get(rank, ""))

    def places(self) -> dict[int, str]:
        """Return the node of every rank that has said hello, where ranks run on several."""
        known = self._kept[Hello] if self._across else {}
        return {rank: hello.node for rank, hello in known.items()}
