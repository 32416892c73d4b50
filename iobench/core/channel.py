"""The control channel: the messages between a driver, its ranks and its agents, and framing.

The driver listens on a Unix socket in the trial's work folder (or on a TCP port, between nodes) and
writes an invitation beside it; each rank reads that, connects back twice and proves that it has it.
An agent of another node, which lives as long as the suite, does the same with a key of its own.
A message is one JSON object behind its length: nothing that arrives is ever executed.  The messages
are below in the order in which they are sent.

Framing is our own, because ``multiprocessing.connection`` cannot bound the time that a message
takes to arrive.  Standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import hmac
import json
import os
import socket
import struct
from pathlib import Path
from typing import Any, List, Mapping, Optional, Tuple, TypeVar, Union

from iobench.core import sockets
from iobench.core.clock import clock
from iobench.core.errors import IobenchError

#: A message that has begun to arrive is through within this time, and a second for each MB of it.
MESSAGE_S, _BYTES_PER_S = 5.0, 1e6
#: What the kernel says of a connection to a node that has gone (``core/sockets``: when).
_UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)
#: Largest message of a rank, and of somebody who has not yet proven to be one (bytes).
LARGEST, LARGEST_UNPROVEN = 1 << 30, 4096
#: Name in a trial's work folder.
INVITATION = "invitation.json"
_LENGTH = struct.Struct("!I")


class ChannelError(IobenchError):
    """What arrived is no message of this protocol, or did not arrive in time."""


class ChannelClosed(ChannelError):
    """The other end has closed the connection."""


class NodeLost(ChannelClosed):
    """The other end's node cannot be reached."""

    def __init__(self) -> None:
        super().__init__("does not answer any more (is its node up?)")


@dataclasses.dataclass(frozen=True)
class ControlMessage:
    """Any of the following."""


@dataclasses.dataclass(frozen=True)
class Challenge(ControlMessage):
    """Driver, first on every connection: prove that you hold the invitation.

    ``nonce``: random, hexadecimal, of this connection alone.
    """

    nonce: str


@dataclasses.dataclass(frozen=True)
class Hello(ControlMessage):
    """Rank: who is there; this connection carries all that follows.

    ``local_rank``: among the ranks of its ``node``.  ``pid``: as its own namespace numbers it.
    ``proof``: :func:`prove` of this connection's challenge.
    """

    rank: int
    local_rank: int
    world_size: int
    node: str
    pid: int
    proof: str


@dataclasses.dataclass(frozen=True)
class Lifeline(ControlMessage):
    """Rank or agent, on a connection that stays silent: when the driver goes, the kernel ends its
    processes by it (:mod:`iobench.host.parent_watch`).  ``proof``: as in Hello."""

    rank: int
    proof: str


@dataclasses.dataclass(frozen=True)
class Refused(ControlMessage):
    """Driver: why a connection is closed, in one line."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Assignment(ControlMessage):
    """Driver: a :class:`iobench.core.cases.Task` as JSON, as this rank's runtime shows it."""

    task: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Extents(ControlMessage):
    """Rank, before Ready: for each sample, in its order, [path, offset, length] ..."""

    rows: List[Any]


class Ready(ControlMessage):
    """Rank: the libraries are imported, nothing of the dataset is open."""


class Prepare(ControlMessage):
    """Driver: bring the data's pages on your node into the trial's cache state."""


@dataclasses.dataclass(frozen=True)
class Prepared(ControlMessage):
    """Rank: what is resident on its node now; the worst node counts.

    ``fraction``: of the data's pages; None where unproven.  ``method``: the system call that
    counted, "" where none did.
    """

    node: str
    fraction: Optional[float]
    method: str


class Go(ControlMessage):
    """Driver: open the loader, measure."""


@dataclasses.dataclass(frozen=True)
class Barrier(ControlMessage):
    """Rank: about to begin the loop.  Driver, when every rank has come: begin.

    ``at``: when, by the clock of the driver's node; None: at once (always so from a rank).
    """

    at: Optional[float] = None


@dataclasses.dataclass(frozen=True)
class Agree(ControlMessage):
    """Rank 0: a number or a text that it chose.  Driver: the same, to all others."""

    value: Union[int, str]


@dataclasses.dataclass(frozen=True)
class Result(ControlMessage):
    """Rank, last: a :class:`iobench.core.records.RankResult` as JSON, an error included."""

    result: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class AgentHello(ControlMessage):
    """Agent: who is there; the driver's calls and its answers use this connection.

    ``rank``: its place among the agents, as their launcher numbers them.  ``proof``: as in Hello.
    """

    rank: int
    node: str
    proof: str


@dataclasses.dataclass(frozen=True)
class Call(ControlMessage):
    """Driver: do this on your node (:data:`iobench.host.agent_process.CALLS`); one at a time."""

    name: str
    arguments: List[Any]


@dataclasses.dataclass(frozen=True)
class Answer(ControlMessage):
    """Agent: what the call returned, as plain JSON; or the error that it raised.

    ``error``: the class of an :class:`~iobench.core.errors.IobenchError`, or ``OSError``; "": none.
    """

    value: Any
    error: str = ""
    reason: str = ""
    file: str = ""


M = TypeVar("M", bound=ControlMessage)
_KINDS = {kind.__name__: kind for kind in ControlMessage.__subclasses__()}
#: What a field may hold, by its annotation.
_HOLDS: Mapping[str, Tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "Union[int, str]": (int, str),
    "List[Any]": (list,),
    "Mapping[str, Any]": (dict,),
    "Optional[float]": (int, float, type(None)),
    "Any": (object,),
}


@dataclasses.dataclass(frozen=True)
class Invitation:
    """What a rank must know to connect; in a file that only its owner can read.

    ``address``: ``host:port``, or "" for the socket beside the invitation, wherever a container
    shows that.  ``key``: of this trial alone.  ``launcher``: whose variables number the ranks.
    """

    address: str
    key: str
    launcher: str
    launcher_options: Mapping[str, Any]


def invite(folder: Path, invitation: Invitation) -> None:
    """Write the invitation into ``folder``, readable by its owner alone."""
    fd = os.open(folder / INVITATION, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "w") as file:
        json.dump(dataclasses.asdict(invitation), file)


def prove(key: str, nonce: str) -> str:
    """Return the proof of a challenge: HMAC-SHA256, hexadecimal.

    ``multiprocessing``'s own ``authkey`` uses HMAC-MD5, which hosts in FIPS mode do not have.
    """
    return hmac.new(bytes.fromhex(key), bytes.fromhex(nonce), hashlib.sha256).hexdigest()


def proven(key: str, nonce: str, proof: str) -> bool:
    """Return whether ``proof`` answers the challenge, in a time that does not depend on it."""
    given = proof.encode(errors="replace")  # JSON may hold halves of characters
    return hmac.compare_digest(prove(key, nonce).encode(), given)


def encode(message: ControlMessage) -> bytes:
    """Return a message as it is sent."""
    body = json.dumps({"message": type(message).__name__, **vars(message)}).encode()
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes) -> ControlMessage:
    """Return the message in ``body``.  Raises ChannelError where it is none."""
    try:
        document = json.loads(body)
        kind = _KINDS[document.pop("message")]
        message = kind(**document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ChannelError(f"sent no message of the protocol ({_glimpse(body)})") from None
    for field in dataclasses.fields(message):
        if not isinstance(getattr(message, field.name), _HOLDS[str(field.type)]):
            raise ChannelError(f"sent a wrong {kind.__name__}.{field.name} ({_glimpse(body)})")
    return message


class ControlChannel:
    """One end of a connection: whole messages in, whole messages out."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def fileno(self) -> int:
        """Return the descriptor, for ``multiprocessing.connection.wait`` and the like."""
        return self._socket.fileno()

    def address(self) -> str:
        """Return this node's address on the network that leads to the other end."""
        if self._socket.family == socket.AF_UNIX:
            return "127.0.0.1"
        return str(self._socket.getsockname()[0])

    def send(self, message: ControlMessage, limit_s: Optional[float] = MESSAGE_S) -> None:
        """Send a message.  Raises ChannelClosed, or ChannelError where it is not taken in time."""
        try:
            self._socket.settimeout(limit_s)
            self._socket.sendall(encode(message))
        except OSError as error:
            if error.errno in _UNREACHABLE:
                raise NodeLost() from None
            if isinstance(error, socket.timeout):
                raise ChannelError(f"took no message for {limit_s:g} s") from None
            raise ChannelClosed("closed its connection") from None

    def receive(self, *, largest: int = LARGEST) -> ControlMessage:
        """Return the next message, which has :data:`MESSAGE_S` to arrive.

        Raises ChannelClosed at the end, ChannelError for rubbish, a message of over ``largest``
        bytes, or one that is late.
        """
        end = clock() + MESSAGE_S
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size, end))
        if size > largest:
            raise ChannelError(f"sent no message of the protocol ({_glimpse(_LENGTH.pack(size))})")
        return decode(self._exactly(size, end + size / _BYTES_PER_S))

    def await_message(self) -> None:
        """Return when something has arrived or the other end has closed, however long it takes."""
        self._socket.settimeout(None)
        with contextlib.suppress(OSError):
            self._socket.recv(1, socket.MSG_PEEK)

    def close(self) -> None:
        """Close this end; idempotent."""
        self._socket.close()

    def _exactly(self, count: int, end: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                self._socket.settimeout(max(end - clock(), 0.001))
                part = self._socket.recv(min(count - len(data), 1 << 20))
            except OSError as error:
                if error.errno in _UNREACHABLE:  # the kernel's timeout, of the same class as ours
                    raise NodeLost() from None
                if isinstance(error, socket.timeout):
                    raise ChannelError(
                        f"sent a part of a message and no more for {MESSAGE_S:g} s"
                    ) from None
                part = b""
            if not part:
                raise ChannelClosed("closed its connection")
            data += part
        return bytes(data)


def connect(folder: Path, address: str) -> ControlChannel:
    """Return a connection to the driver.  Raises ChannelClosed where none listens any more."""
    try:
        return ControlChannel(sockets.connect(folder, address, MESSAGE_S))
    except OSError as error:
        raise ChannelClosed(f"the driver does not listen at {address or folder}: {error}") from None


def _glimpse(body: bytes) -> str:
    return repr(body[:24]) + ("..." if len(body) > 24 else "")
