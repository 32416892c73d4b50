"""The nodes of a suite: which they are, and an agent on each, which lives as long as the suite."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection
from pathlib import Path

from iobench.core import registry
from iobench.core.cases import Case
from iobench.core.channel import AgentHello, ControlChannel
from iobench.core.clock import clock
from iobench.core.errors import BackendUnavailable, SpecError
from iobench.core.protocols import Ranks
from iobench.host import probes, scratch
from iobench.host.fingerprint import steering
from iobench.host.remote_agent import INVITATION, Invited, RemoteAgent
from iobench.run.door import Door, refuse

#: Seconds until every agent has connected; until an agent's launcher ends when they have gone.
START_S, END_S = 60.0, 5.0
#: What processes on other nodes get of this one's environment, beside what steers libraries.
_FORWARDED = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "HOME", "TMPDIR", "IOBENCH_PLUGINS")
#: No packet is sent to it: the kernel only says by which address it would go out.
_ANY_PORT = 9


@dataclasses.dataclass(frozen=True)
class Nodes:
    """Nodes in the order in which their launcher numbers them.

    ``hosts``: as it is told of them.  ``address``: of the driver, as they reach it.
    """

    hosts: Sequence[str]
    agents: Sequence[RemoteAgent]
    address: str

    def first(self, count: int) -> Nodes:
        """Return the first of them."""
        return dataclasses.replace(self, hosts=self.hosts[:count], agents=self.agents[:count])

    def after(self, count: int) -> RemoteAgent | None:
        """Return the agent of the node after the first of them; None where there is none."""
        return self.agents[count] if count < len(self.agents) else None


def forwarded() -> list[str]:
    """Return the variables that processes on other nodes get as they are here."""
    return sorted({n for n in _FORWARDED if n in os.environ} | set(steering(os.environ)))


def allocated(option: str = "", variables: Mapping[str, str] = os.environ) -> list[str]:
    """Return the hosts that trials may use: ``option`` (comma separated), else the batch job's.

    Only this host where there are neither.  Raises BackendUnavailable where the batch system's
    list cannot be read.
    """
    if option:
        return [host.strip() for host in option.split(",") if host.strip()]
    for name in registry.names("schedulers"):
        if found := registry.load("schedulers", name).make().hosts(variables):
            return list(found)
    return [socket.gethostname()]


def check(cases: Sequence[Case], hosts: Sequence[str]) -> None:
    """Raise SpecError where a case wants more nodes than there are."""
    for case in cases:
        if case.nodes > max(len(hosts), 1):
            raise SpecError(
                f"case {case.label or case.pipeline!r} wants {case.nodes} nodes, and here are "
                f"{len(hosts)} ({', '.join(hosts)}): name them by --hosts h1,h2, or run inside an "
                "allocation of the batch system"
            )


def unused(cases: Sequence[Case], hosts: Sequence[str]) -> list[str]:
    """Return what a user should know where the suite leaves nodes of its job idle.

    A spec means the same wherever it runs, so the nodes that are here change no case of it.
    """
    widest = max((case.nodes for case in cases), default=1)
    if widest >= len(hosts):
        return []
    used = f"{widest} of the {len(hosts)} nodes here"
    return [
        f"the spec uses {used} ({', '.join(hosts[:widest])}): `nodes` in [case] or [matrix] "
        "spreads ranks over more; `iobench run distributed` compares 1 and 2"
    ]


@contextlib.contextmanager
def present(
    cases: Sequence[Case], hosts: Sequence[str], limit_s: float, *, spare: bool = False
) -> Iterator[Nodes | None]:
    """Start an agent on each node that the cases need; None where that is this one alone.

    ``limit_s``: how long an agent's answer may take.  ``spare``: on one more, if there is one.
    Raises BackendUnavailable where one does not connect.
    """
    across = [case for case in cases if case.nodes > 1]
    if not across:
        yield None
        return
    check(cases, hosts)
    wanted = hosts[: max(case.nodes for case in across) + spare]
    address = _address_towards(wanted)
    with tempfile.TemporaryDirectory(prefix="iobench-agents-") as folder:
        door = Door(Path(folder), address)
        with contextlib.ExitStack() as undo:
            launcher, process = undo.enter_context(_started(across[0], wanted, door, Path(folder)))
            undo.callback(door.close)
            found = _all(door, process, len(wanted), Path(folder))

            def first_gone() -> str:
                return _first_gone(launcher, process, Path(folder), [name for name, _ in found])

            agents = [RemoteAgent(name, line, limit_s, first_gone) for name, line in found]
            for agent in agents:
                undo.callback(agent.close)
            yield Nodes(wanted, agents, address)


def _first_gone(
    launcher: str, process: subprocess.Popen[bytes], folder: Path, names: Sequence[str]
) -> str:
    """Return the node whose agent went first, as the launcher says, which ends all others then."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    text = (folder / "stderr").read_text(errors="replace")
    backend = registry.load("launchers", launcher)
    if node := backend.lost(text):
        return str(node)
    failed = backend.failure(text)
    return names[failed.rank] if failed and failed.rank < len(names) else ""


def _address_towards(hosts: Sequence[str]) -> str:
    """Return this node's address as the last of the hosts reaches it."""
    try:
        family, kind, _, _, there = socket.getaddrinfo(
            hosts[-1], _ANY_PORT, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as asked:
            asked.connect(there)
            return str(asked.getsockname()[0])
    except OSError as error:
        raise BackendUnavailable(
            f"node {hosts[-1]} cannot be reached from here ({error.strerror}): is its name right?"
        ) from None


@contextlib.contextmanager
def _started(
    case: Case, hosts: Sequence[str], door: Door, folder: Path
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Have the case's launcher start the agents; they and it are gone afterwards.

    Yield its name and its process.
    """
    launcher = registry.require("launchers", case.launcher).make(**case.launcher_options)
    name = getattr(launcher, "by", case.launcher)
    if name != case.launcher:
        launcher = registry.require("launchers", name).make()
    command = [sys.executable, "-m", "iobench.host.agent_process", name]
    argv = launcher.argv(command, Ranks(len(hosts), hosts, [*forwarded(), INVITATION]))
    invited = Invited(door.address, door.key)
    usual = registry.load("launchers", name).across or {}
    bare = not registry.form_of(case)
    stack = registry.installed(registry.stack_of(case)).env if bare else {}  # with its own MPI
    with open(folder / "stderr", "wb") as stderr:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            env={**usual, **os.environ, **stack, INVITATION: invited.text()},
            start_new_session=True,
        )
    try:
        yield name, process
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        scratch.remove(registry.load("launchers", name).leaves(process.pid))


def _all(
    door: Door, process: subprocess.Popen[bytes], count: int, folder: Path
) -> list[tuple[str, ControlChannel]]:
    """Return (name, connection) of every agent by its number, when all have connected."""
    found: dict[int, tuple[str, ControlChannel]] = {}
    end = clock() + START_S
    while len(found) < count:
        connection.wait([door.fileno()], 0.1)
        for line, hello in door.admit():
            if isinstance(hello, AgentHello):
                found[hello.rank] = hello.node, line
            else:
                refuse(line, "a rank connected where agents do")
        if len(found) < count and (clock() > end or process.poll() is not None):
            text = (folder / "stderr").read_text(errors="replace")
            raise BackendUnavailable(
                f"{len(found)} of {count} nodes have an agent"
                + (f" ({', '.join(sorted(name for name, _ in found.values()))})" if found else "")
                + f": {probes.last_lines(text, 3) or 'the others did not connect'}; can the "
                "launcher start a program on each of them, and do they see this folder?"
            )
    names = [name for name, _ in found.values()]
    if len(set(names)) < count:
        raise BackendUnavailable(
            f"several nodes have the same host name ({', '.join(sorted(names))}): give each its own"
        )
    return [found[rank] for rank in sorted(found)]
