"""The rank's end of the control channel (:mod:`iobench.core.channel`).

A rank waits for its driver without a limit of its own: the driver ends it when the trial's time is
up, and when the driver goes the lifeline ends it.  Standard library only, Python 3.9.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Tuple, Type, TypeVar

from iobench.core import channel, registry
from iobench.core.cases import Task, task_from_json
from iobench.core.channel import Agree, Assignment, Barrier, ControlChannel, Hello, Invitation, M
from iobench.core.clock import clock
from iobench.core.errors import IobenchError
from iobench.core.inside import HELD
from iobench.host import parent_watch

V = TypeVar("V", int, str)
#: A later start than this would be another node's clock (s).
_LONGEST_START_S = 0.1


class Driver:
    """The driver of this trial, as this rank reaches it."""

    def __init__(self, line: ControlChannel, lifeline: ControlChannel, hello: Hello) -> None:
        self._line, self._lifeline = line, lifeline
        self.rank, self.world_size, self.node = hello.rank, hello.world_size, hello.node
        self.local_rank = hello.local_rank

    def send(self, message: channel.ControlMessage) -> None:
        """Send a message.  Raises IobenchError when the driver has gone."""
        self._line.send(message, None)

    def expect(self, kind: Type[M]) -> M:
        """Wait for the next message and return it.  Raises IobenchError for another kind."""
        return _expect(self._line, kind)

    def meet(self) -> float:
        """Wait until every rank has come here; return when to begin, by this node's clock."""
        self.send(Barrier())
        at = self.expect(Barrier).at
        return clock() if at is None else min(at, clock() + _LONGEST_START_S)

    @property
    def address(self) -> str:
        """Return this node's address, as the ranks of the other nodes reach it."""
        return self._line.address()

    def agree(self, value: V) -> V:
        """Return rank 0's value on every rank; all ranks call it equally often, in one order."""
        if self.rank:
            return type(value)(self.expect(Agree).value)
        self.send(Agree(value))
        return value


def join(path: Path) -> Tuple[Driver, Task]:
    """Connect to the driver whose invitation is at ``path``; return it and this rank's task.

    From then on this process group ends with the driver.  Raises IobenchError where the driver has
    gone or refuses this rank.
    """
    os.environ.pop(HELD, None)
    invitation = Invitation(**json.loads(path.read_text()))
    launcher = registry.load("launchers", invitation.launcher).make(**invitation.launcher_options)
    rank, world_size = launcher.rank(os.environ)
    line, proof = _connect(path.parent, invitation)
    lifeline, held = _connect(path.parent, invitation)
    local_rank = launcher.local_rank(os.environ)
    hello = Hello(rank, local_rank, world_size, socket.gethostname(), os.getpid(), proof)
    line.send(hello)
    task = task_from_json(dict(_expect(line, Assignment).task))
    lifeline.send(channel.Lifeline(rank, held))
    # the driver, one thread, sent the task when it was done with all that it sends on the lifeline
    parent_watch.end_when_closed(lifeline.fileno())
    return Driver(line, lifeline, hello), task


def _connect(folder: Path, invitation: Invitation) -> Tuple[ControlChannel, str]:
    """Return a new connection and the proof that it wants."""
    line = channel.connect(folder, invitation.address)
    return line, channel.prove(invitation.key, _expect(line, channel.Challenge).nonce)


def _expect(line: ControlChannel, kind: Type[M]) -> M:
    line.await_message()
    try:
        message = line.receive()
    except channel.ChannelClosed:
        raise IobenchError("the driver has gone; nothing was measured") from None
    if isinstance(message, channel.Refused):
        raise IobenchError(f"the driver refused this rank: {message.reason}")
    if not isinstance(message, kind):
        raise IobenchError(f"the driver sent {type(message).__name__}, not {kind.__name__}")
    return message
