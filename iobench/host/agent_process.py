"""An agent of a node that is not the driver's own: answers the driver's calls until it goes.

``python -m iobench.host.agent_process LAUNCHER`` is started once a node, outside of containers, by
the launcher that starts the ranks.  It connects to the driver, proves that it has the key in its
environment, and does what :class:`iobench.host.remote_agent.RemoteAgent` asks: nothing but
:data:`CALLS`.  When the driver goes, the kernel ends it and the processes that lock pages for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence

from iobench.core import channel, registry
from iobench.core.cases import Extent
from iobench.core.channel import Answer, Call, ControlChannel
from iobench.core.errors import IobenchError
from iobench.core.records import IoCounters
from iobench.host import parent_watch, work_folder
from iobench.host.agent import LOCAL
from iobench.host.remote_agent import INVITATION, Invited

#: Contexts that the driver has entered and not left yet, by the number it knows them by.
Held = Dict[int, contextlib.ExitStack]


def main(argv: List[str]) -> int:
    """Serve the driver that ``IOBENCH_AGENT`` names until it goes."""
    invited = Invited.read(os.environ.pop(INVITATION))
    launcher = registry.load("launchers", argv[0]).make()
    line, lifeline = (_connect(invited) for _ in range(2))
    rank = launcher.rank(os.environ)[0]
    _send(line, channel.AgentHello(rank, socket.gethostname(), _proof(line, invited)))
    _send(lifeline, channel.Lifeline(rank, _proof(lifeline, invited)))
    parent_watch.end_when_closed(lifeline.fileno())
    work_folder.sweep()
    with contextlib.suppress(channel.ChannelClosed):
        serve(line)
    return 0


def serve(line: ControlChannel) -> None:
    """Answer calls, one after the other.  Raises ChannelClosed when the driver has gone."""
    held: Held = {}
    with contextlib.ExitStack() as undo:
        undo.callback(_leave_all, held)
        while True:
            line.await_message()
            call = line.receive()
            assert isinstance(call, Call)
            _send(line, answer(call, held))


def answer(call: Call, held: Held) -> Answer:
    """Do what was asked; return what came of it, an error of the user's world included."""
    try:
        if call.name == "leave":
            held.pop(call.arguments[0]).close()
            return Answer(None)
        if call.name in CONTEXTS:
            stack, number = contextlib.ExitStack(), max(held, default=0) + 1
            value = stack.enter_context(CONTEXTS[call.name](*call.arguments))
            held[number] = stack
            return Answer([number, value])
        return Answer(CALLS[call.name](*call.arguments))
    except IobenchError as error:
        return Answer(None, type(error).__name__, str(error))
    except OSError as error:
        return Answer(
            error.errno, "OSError", error.strerror or str(error), str(error.filename or "")
        )


def _leave_all(held: Held) -> None:
    for stack in held.values():
        stack.close()


def _paths(files: Sequence[str]) -> List[Path]:
    return [Path(file) for file in files]


def _residency(files: Sequence[str]) -> Dict[str, Any]:
    return dataclasses.asdict(LOCAL.residency(_paths(files)))


def _set_fraction(
    samples: Sequence[Sequence[Any]], fraction: float, seed: int, files: Sequence[str]
) -> Dict[str, Any]:
    extents = [[Extent(*extent) for extent in sample] for sample in samples]
    return dataclasses.asdict(LOCAL.set_fraction(extents, fraction, seed, _paths(files)))


#: What a driver may have done on this node: name -> function of plain JSON.
CALLS: Mapping[str, Callable[..., Any]] = {
    "evict": lambda files: LOCAL.evict(_paths(files)),
    "warm": lambda files: LOCAL.warm(_paths(files)),
    "check_warmable": lambda nbytes, files: LOCAL.check_warmable(nbytes, _paths(files)),
    "residency": _residency,
    "set_fraction": _set_fraction,
    "drop_caches": lambda names: LOCAL.drop_caches(allowed=True, names=names),
    "fio": lambda folder, options, jobs, limit_s: dataclasses.asdict(
        LOCAL.fio(Path(folder), options, jobs, time_limit_s=limit_s)
    ),
    "mount": lambda path: dict(LOCAL.mount(Path(path))),
    "cold": lambda path: LOCAL.cold(Path(path)),
    "unseen": lambda path: LOCAL.unseen(Path(path)),
    "counters": lambda path: dict(LOCAL.counters(Path(path))),
    "crossed": lambda path, io, moved: list(LOCAL.crossed(Path(path), IoCounters(**io), moved)),
    "others": lambda path: LOCAL.others(Path(path)),
    "caches": lambda path: dict(LOCAL.caches(Path(path))),
    "move_columns": LOCAL.move_columns,
    "copy": lambda pairs: LOCAL.copy([(Path(a), Path(b)) for a, b in pairs]),
    "settle": lambda path: LOCAL.settle(Path(path)),
    "absent": LOCAL.absent,
    "lacks": LOCAL.lacks,
    "stop": LOCAL.stop,
}
#: The same, of what lasts until the driver says ``leave``.
CONTEXTS: Mapping[str, Callable[..., Any]] = {
    "lock": lambda files, resident: LOCAL.lock(_paths(files), resident=resident),
    "work_folder": lambda folder, texts, links: work_folder.made(Path(folder), texts, links),
}


def _connect(invited: Invited) -> ControlChannel:
    return channel.connect(Path(), invited.address)


def _proof(line: ControlChannel, invited: Invited) -> str:
    line.await_message()
    challenge = line.receive(largest=channel.LARGEST_UNPROVEN)
    assert isinstance(challenge, channel.Challenge)
    return channel.prove(invited.key, challenge.nonce)


def _send(line: ControlChannel, message: channel.ControlMessage) -> None:
    line.send(message, None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
