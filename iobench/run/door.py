"""Where ranks and agents come in: a listening socket, and who has proven to hold the key.

On a Unix socket, in a folder of this user's, whoever connects is one of the trial's own processes:
what it does wrong is an error at once.  On a TCP port strangers are refused, and nothing else
happens.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iobench.core import channel, sockets
from iobench.core.channel import AgentHello, ChannelError, ControlChannel, Hello, Lifeline
from iobench.core.errors import TrialFailed


class Door:
    """A socket in ``folder``, or on a free TCP port of ``host``; raises OSError for none."""

    def __init__(self, folder: Path, host: str = "") -> None:
        self.local, self.key = not host, secrets.token_hex(32)
        self._socket, self.address = sockets.listen(folder, host)
        self._unproven: dict[ControlChannel, str] = {}
        self._lifelines: list[ControlChannel] = []
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._socket, selectors.EVENT_READ)

    def fileno(self) -> int:
        """Return a descriptor to wait for: it is ready when :meth:`admit` has something to take."""
        return self._ready.fileno()

    def admit(self) -> Iterator[tuple[ControlChannel, Hello | AgentHello]]:
        """Take what is ready; yield who has proven to be a rank or an agent.

        Raises TrialFailed, on a Unix socket, for a process that is neither.
        """
        for key, _ in self._ready.select(0):
            if key.fileobj is self._socket:
                self._accept()
            elif key.fileobj in self._unproven and (come := self._prove(key.fileobj)):
                yield come

    def _prove(self, end: Any) -> tuple[ControlChannel, Hello | AgentHello] | None:
        """Take the first message at an end; return who has proven to be a rank or an agent."""
        self._ready.unregister(end)
        nonce = self._unproven.pop(end)
        try:
            message = end.receive(largest=channel.LARGEST_UNPROVEN)
            if not isinstance(message, (Hello, AgentHello, Lifeline)):
                raise ChannelError(f"sent {type(message).__name__} before Hello")
            if not channel.proven(self.key, nonce, message.proof):
                raise ChannelError("has the wrong key")
        except channel.ChannelClosed:
            end.close()  # it has not said who it was
        except ChannelError as error:
            refuse(end, str(error))
            if self.local:
                raise TrialFailed(f"a process that connected to the driver {error}") from None
        else:
            if not isinstance(message, Lifeline):
                return end, message
            self._lifelines.append(end)
        return None

    def _accept(self) -> None:
        try:
            accepted = self._socket.accept()[0]
        except OSError:  # it has gone, or strangers hold every file that may be open
            self._drop_strangers()
            return
        line, nonce = ControlChannel(sockets.watched(accepted)), secrets.token_hex(32)
        try:
            line.send(channel.Challenge(nonce))
        except ChannelError:  # it has gone
            line.close()
            return
        self._unproven[line] = nonce
        self._ready.register(line, selectors.EVENT_READ)

    def _drop_strangers(self) -> None:
        """Close what has connected and proven nothing."""
        for line in self._unproven:
            self._ready.unregister(line)
            line.close()
        self._unproven.clear()

    def close(self) -> None:
        """Close everything: whoever came in by it ends by that."""
        self._ready.close()
        self._socket.close()
        for end in (*self._unproven, *self._lifelines):
            end.close()


def refuse(line: ControlChannel, reason: str) -> None:
    """Close a connection, saying why."""
    with contextlib.suppress(ChannelError):
        line.send(channel.Refused(reason))
    line.close()
