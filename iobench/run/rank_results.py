"""What ranks have sent of their results, and where the columns of these are kept."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pydantic

from iobench.core.channel import Hello, Result
from iobench.core.errors import ResultsError, TrialFailed
from iobench.core.records import RankResult
from iobench.host import columns
from iobench.host.agent import NodeAgent

_RANK: pydantic.TypeAdapter[RankResult] = pydantic.TypeAdapter(RankResult)
_COUNTS: pydantic.TypeAdapter[dict[str, int]] = pydantic.TypeAdapter(dict[str, int])
#: Agents that move columns at once.
_AT_ONCE = 32


def parse(sent: Iterable[Result], folder: Path, *, in_memory: bool) -> tuple[RankResult, ...]:
    """Return the results of ranks; their columns are in ``folder``, or are loaded from it.

    Raises TrialFailed for what is no result, or columns that cannot be read.
    """
    try:
        found = [_joined(message, folder) for message in sent]
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise TrialFailed(f"a rank sent a wrong result: {where}: {first['msg']}") from None
    try:
        return tuple(map(columns.loaded, found) if in_memory else found)
    except ResultsError as error:
        raise TrialFailed(f"a rank's columns cannot be read: {error.__cause__}") from None


def _joined(message: Result, folder: Path) -> RankResult:
    result = _RANK.validate_python(message.result)
    return columns.joined(result, _COUNTS.validate_python(_counts(message)), folder)


def _counts(message: Result) -> Mapping[str, int]:
    return message.result.get("columns") or {}


def keep(
    agents: Mapping[str, NodeAgent], said: Iterable[Hello], sent: Iterable[Result], work: Path,
    target: Path,
) -> None:  # fmt: skip
    """Have the agent of every node move its ranks' columns from ``work`` there into ``target``.

    ``agents``: by node, or of the only one by "".  Raises TrialFailed where one cannot.
    """
    wrote = {message.result.get("rank") for message in sent if _counts(message)}
    hellos = [hello for hello in said if hello.rank in wrote]

    def move(node: str) -> None:
        ranks = [hello.rank for hello in hellos if node in ("", hello.node)]
        _move(agents[node], node, ranks, work, target)

    if len(agents) == 1:
        move(*agents)
        return
    with concurrent.futures.ThreadPoolExecutor(min(len(agents), _AT_ONCE)) as pool:
        list(pool.map(move, agents))


def _move(agent: NodeAgent, node: str, ranks: Sequence[int], work: Path, target: Path) -> None:
    try:
        agent.move_columns(str(work), str(target), ranks)
    except OSError as error:
        where = f"node {node}: " if node else ""
        raise TrialFailed(
            f"{where}the columns of its ranks cannot be moved to {target} ({error.strerror}): are "
            "the results there on every node, and is there room?"
        ) from None
