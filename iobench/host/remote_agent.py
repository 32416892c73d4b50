"""The agent of another node, from the driver's side: each call is a message and its answer."""

from __future__ import annotations

import contextlib
import dataclasses
from multiprocessing import connection
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

from iobench.core import errors
from iobench.core.cases import Extent, Options
from iobench.core.channel import Answer, Call, ChannelClosed, ChannelError, ControlChannel
from iobench.core.errors import IobenchError, TrialFailed
from iobench.core.protocols import Crossed
from iobench.core.records import IoCounters
from iobench.host.fio import FioResult
from iobench.host.page_cache import Residency

#: Of the time that an answer may take, the part that fio may: it says itself that it took longer.
FIO_SHARE = 0.9
#: Files that one call copies: a large dataset takes longer than an answer may.
FILES_A_CALL = 256
#: Variable of an agent's environment; a command line would show the key to every user.
INVITATION = "IOBENCH_AGENT"


@dataclasses.dataclass(frozen=True)
class Invited:
    """What an agent must know to connect: ``host:port``, and the key of this suite's agents."""

    address: str
    key: str

    def text(self) -> str:
        """Return it as a variable's value."""
        return f"{self.address} {self.key}"

    @classmethod
    def read(cls, text: str) -> Invited:
        """Return it from a variable's value."""
        return cls(*text.split())


class RemoteAgent:
    """Acts on another node; raises what :class:`iobench.host.agent.Agent` raises there.

    Paths are the node's own.  ``limit_s``: how long an answer may take.  Once the agent has gone,
    or has not answered in time, every call raises TrialFailed.  ``first_gone``: returns the node
    whose agent went first where the launcher has ended all of them, "" where it does not know.
    """

    def __init__(
        self,
        node: str,
        line: ControlChannel,
        limit_s: float,
        first_gone: Callable[[], str] = str,
    ) -> None:
        self.node, self._line, self._limit_s = node, line, limit_s
        self._first_gone = first_gone
        self._lost = ""

    def evict(self, files: Iterable[Path]) -> None:
        """See :func:`iobench.host.page_cache.evict`."""
        self._call("evict", _names(files))

    def warm(self, files: Iterable[Path]) -> None:
        """See :func:`iobench.host.page_cache.warm`."""
        self._call("warm", _names(files))

    def lock(
        self, files: Sequence[Path], *, resident: bool = False
    ) -> contextlib.AbstractContextManager[str]:
        """See :func:`iobench.host.page_lock.lock`."""
        return self._context("lock", _names(files), resident)

    def work_folder(
        self, folder: Path, texts: Mapping[str, str], links: Mapping[str, str]
    ) -> contextlib.AbstractContextManager[None]:
        """See :func:`iobench.host.work_folder.made`."""
        return self._context("work_folder", str(folder), dict(texts), dict(links))

    def check_warmable(self, nbytes: int, files: Sequence[Path] = ()) -> None:
        """See :func:`iobench.host.page_cache.check_warmable`."""
        self._call("check_warmable", nbytes, _names(files))

    def residency(self, files: Iterable[Path]) -> Residency:
        """See :func:`iobench.host.page_cache.residency`."""
        return Residency(**self._call("residency", _names(files)))

    def set_fraction(
        self,
        samples: Sequence[Sequence[Extent]],
        fraction: float,
        seed: int,
        files: Iterable[Path] = (),
    ) -> Residency:
        """See :func:`iobench.host.page_cache.set_fraction`."""
        found = self._call("set_fraction", samples, fraction, seed, _names(files))
        return Residency(**found)

    def drop_caches(self, *, allowed: bool, names: bool = False) -> None:
        """See :func:`iobench.host.page_cache.drop_caches`."""
        if allowed:
            self._call("drop_caches", names)

    def fio(
        self,
        folder: Path,
        options: Mapping[str, str],
        jobs: Sequence[Mapping[str, str]],
        *,
        time_limit_s: float,
        enter: Sequence[str] = (),
    ) -> FioResult:
        """See :func:`iobench.host.fio.run`; ``enter`` is of this node, and empty."""
        assert not enter
        limit_s = min(time_limit_s, FIO_SHARE * self._limit_s)
        return FioResult(**self._call("fio", str(folder), dict(options), list(jobs), limit_s))

    def mount(self, path: Path) -> Mapping[str, Any]:
        """See :func:`iobench.host.filesystems.describe_mount`."""
        found: Dict[str, Any] = self._call("mount", str(path))
        return found

    def cold(self, path: Path) -> str:
        """See :meth:`iobench.host.agent.Agent.cold`."""
        return str(self._call("cold", str(path)))

    def unseen(self, path: Path) -> str:
        """See :func:`iobench.host.filesystems.unseen`."""
        return str(self._call("unseen", str(path)))

    def counters(self, path: Path) -> Mapping[str, int]:
        """See :meth:`iobench.host.agent.Agent.counters`."""
        found: Dict[str, int] = self._call("counters", str(path))
        return found

    def crossed(self, path: Path, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """See :meth:`iobench.host.agent.Agent.crossed`."""
        return Crossed(*self._call("crossed", str(path), dataclasses.asdict(io), dict(moved)))

    def others(self, path: Path) -> Optional[float]:
        """See :meth:`iobench.host.agent.Agent.others`."""
        found: Optional[float] = self._call("others", str(path))
        return found

    def caches(self, path: Path) -> Mapping[str, int]:
        """See :meth:`iobench.host.agent.Agent.caches`."""
        found: Dict[str, int] = self._call("caches", str(path))
        return found

    def move_columns(self, source: str, target: str, ranks: Sequence[int]) -> None:
        """See :func:`iobench.host.columns.move`."""
        self._call("move_columns", source, target, list(ranks))

    def copy(self, pairs: Sequence[Tuple[Path, Path]]) -> None:
        """See :func:`iobench.host.files.copy`."""
        for at in range(0, len(pairs), FILES_A_CALL):
            self._call("copy", [[str(a), str(b)] for a, b in pairs[at : at + FILES_A_CALL]])

    def settle(self, path: Path) -> None:
        """See :func:`iobench.host.files.settle`."""
        self._call("settle", str(path))

    def absent(self, path: str) -> str:
        """See :func:`iobench.host.probes.absent`."""
        return str(self._call("absent", path))

    def lacks(self, runtime: str, options: Options, image: str) -> str:
        """See :meth:`iobench.host.agent.Agent.lacks`."""
        return str(self._call("lacks", runtime, dict(options), image))

    def stop(self, runtime: str, options: Options, name: str) -> None:
        """See :meth:`iobench.host.agent.Agent.stop`."""
        self._call("stop", runtime, dict(options), name)

    def close(self) -> None:
        """Let the agent end."""
        self._line.close()

    @contextlib.contextmanager
    def _context(self, name: str, *arguments: Any) -> Iterator[Any]:
        number, value = self._call(name, *arguments)
        try:
            yield value
        finally:
            with contextlib.suppress(TrialFailed):  # an agent that has gone holds nothing
                self._call("leave", number)

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._lost:
            raise TrialFailed(self._lost)
        try:
            self._line.send(Call(name, list(arguments)))
            if not connection.wait([self._line.fileno()], self._limit_s):
                raise ChannelError(f"did not answer {name!r} within {self._limit_s:g} s")
            answer = self._line.receive()
        except ChannelError as error:
            gone = self._first_gone() if isinstance(error, ChannelClosed) else ""
            self._lost = (
                f"node {gone or self.node}: its agent {error}: is the node up, and do its "
                "filesystems answer? Then `iobench run --resume` goes on"
            )
            self._line.close()
            raise TrialFailed(self._lost) from None
        assert isinstance(answer, Answer)
        if answer.error == "OSError":
            reason = f"{answer.reason} on node {self.node}"
            raise OSError(answer.value, reason, answer.file or None)
        if answer.error:
            raise _error(answer.error)(f"node {self.node}: {answer.reason}")
        return answer.value


def _names(files: Iterable[Path]) -> List[str]:
    return [str(file) for file in files]


def _error(name: str) -> type[IobenchError]:
    found = getattr(errors, name, TrialFailed)
    return found if issubclass(found, IobenchError) else TrialFailed
