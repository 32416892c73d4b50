"""The driver's end of the control channel: accepts a trial's ranks and talks with all of them.

Every wait is bounded and blocks on file descriptors.  On a Unix socket, in a folder of this user's,
whoever connects is one of the trial's own processes: what it does wrong fails the trial at once.
On a TCP port strangers are refused, and the trial goes on.
"""

from __future__ import annotations

import contextlib
import secrets
from multiprocessing import connection
from pathlib import Path
from typing import Any

from iobench.core import channel
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

#: What a rank sends once at most, and the driver keeps.
_KEPT = (Hello, channel.Extents, channel.Ready, channel.Prepared, Barrier, Result)

#: Ranks of one node begin together this long after the last one has come: on busy cores they wake
#: milliseconds apart.
_BEGIN_AFTER_S = 0.005


class Listener:
    """Connections to the ranks of one trial, and what each of them has sent."""

    def __init__(self, folder: Path, case: Case, launcher: str, world_size: int, host: str = ""):
        """Listen in ``folder``, or on a TCP port of ``host``; write the invitation into ``folder``.

        ``launcher``: name of the case's, or of the one that is used in its place.  Raises
        TrialFailed where no socket can be made.
        """
        self._launcher, self._world_size, self._key = launcher, world_size, secrets.token_hex(32)
        self._local = not host
        options = case.launcher_options if launcher == case.launcher else {}
        try:
            self._socket, address = channel.listen(folder, host)
            channel.invite(folder, channel.Invitation(address, self._key, launcher, options))
        except OSError as error:
            raise TrialFailed(
                f"no socket can be made in {folder} ({error.strerror}): set TMPDIR to a folder on "
                "a local disk"
            ) from None
        self.task: Task | None = None
        #: Ranks wait at a barrier for :meth:`begin`, even when all have come.
        self.holds = False
        self._unproven: dict[ControlChannel, str] = {}
        self._lifelines: list[ControlChannel] = []
        self._lines: dict[ControlChannel, int] = {}
        self._kept: dict[type[Any], dict[int, Any]] = {kind: {} for kind in _KEPT}
        #: A rank that has sent no result and closed its connection, or whose result is an error.
        self.failing = ""

    def from_all(self, kind: type[M]) -> bool:
        """Return whether every rank has sent its message of this kind."""
        return len(self._kept[kind]) == self._world_size

    def kept(self, kind: type[M]) -> list[M]:
        """Return the messages of this kind that have come, by rank."""
        return [message for _, message in sorted(self._kept[kind].items())]

    def missing(self) -> str:
        """Return who has not said hello: ``worker``, ``rank 1 of 2`` ..."""
        absent = [r for r in range(self._world_size) if r not in self._kept[Hello]]
        return ", ".join(ranks.name(rank, self._world_size) for rank in absent)

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
        ends = [self._socket, *self._unproven, *self._lines, sentinel]
        found: list[Any] = connection.wait(ends, max(timeout_s, 0.0))
        for end in found:
            if end is self._socket:
                self._accept()
            elif end in self._unproven:
                self._admit(end)
            elif end in self._lines:
                self._take(end)
        return found == [sentinel]

    def close(self) -> None:
        """Close everything: what still runs of the ranks ends by that."""
        self._socket.close()
        for end in (*self._unproven, *self._lines, *self._lifelines):
            end.close()

    def _accept(self) -> None:
        try:
            connected = self._socket.accept()[0]
        except OSError:  # it has gone, or strangers hold every file that may be open
            self._drop_strangers()
            return
        line, nonce = channel.accepted(connected), secrets.token_hex(32)
        with contextlib.suppress(ChannelError):
            line.send(channel.Challenge(nonce))
            self._unproven[line] = nonce

    def _drop_strangers(self) -> None:
        """Close what has connected and proven nothing."""
        for line in self._unproven:
            line.close()
        self._unproven.clear()

    def _admit(self, line: ControlChannel) -> None:
        """Take the first message of a connection, which must prove that it is a rank's."""
        nonce = self._unproven.pop(line)
        try:
            message = line.receive(largest=channel.LARGEST_UNPROVEN)
            if not isinstance(message, (Hello, channel.Lifeline)):
                raise ChannelError(f"sent {type(message).__name__} before Hello")
            if not channel.proven(self._key, nonce, message.proof):
                raise ChannelError("has the wrong key")
        except channel.ChannelClosed:
            line.close()  # it has not said who it was
        except ChannelError as error:
            self._refuse(line, str(error))
            if self._local:
                raise TrialFailed(f"a process that connected to the driver {error}") from None
        else:
            if isinstance(message, Hello):
                self._greet(line, message)
            else:
                self._lifelines.append(line)

    def _greet(self, line: ControlChannel, hello: Hello) -> None:
        if hello.world_size != self._world_size:
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
            try:
                line.send(channel.Assignment(to_json(self.task)))
            except channel.ChannelClosed:
                pass  # that is seen when it is read
            except ChannelError as error:
                raise TrialFailed(f"{self._name(hello.rank)} {error}") from None
            return
        self._refuse(line, reason)
        raise TrialFailed(reason)

    def _refuse(self, line: ControlChannel, reason: str) -> None:
        with contextlib.suppress(ChannelError):
            line.send(channel.Refused(reason))
        line.close()

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
        except channel.ChannelClosed:
            del self._lines[line]
            line.close()
            if rank not in self._kept[Result]:
                self.failing = self._name(rank)
            return
        except ChannelError as error:
            raise TrialFailed(f"{self._name(rank)} {error}") from None
        if isinstance(message, Result) and message.result.get("error"):
            self.failing = self._name(rank)
        if isinstance(message, Barrier) and self.from_all(Barrier) and not self.holds:
            self.begin(clock() + _BEGIN_AFTER_S if self._local else None)

    def begin(self, at: float | None = None) -> None:
        """Let the ranks go on that wait at the barrier."""
        self._kept[Barrier].clear()
        self.send(Barrier(at))

    def _name(self, rank: int) -> str:
        return ranks.name(rank, self._world_size)
