"""Several ranks in one trial: which trials start them, who failed, and what they say as one job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from iobench.core import stages
from iobench.core.cases import Trial
from iobench.core.records import RankResult


def started(trial: Trial) -> int:
    """Return how many ranks a trial starts."""
    return 1 if stages.of(trial.stage).one_rank else trial.case.world_size


def nodes(trial: Trial) -> int:
    """Return on how many nodes a trial's ranks run."""
    return min(trial.case.nodes, started(trial))


def misplaced(found: Mapping[int, str], wanted: Sequence[str]) -> str:
    """Return how ranks are not spread evenly over the nodes that were asked for; "" where they are.

    ``found``: rank -> node.
    """
    counts = Counter(found.values())
    if set(counts) == set(wanted) and len(set(counts.values())) == 1:
        return ""
    there = ", ".join(f"{count} on {node}" for node, count in sorted(counts.items()))
    each = len(found) // len(wanted)
    return (
        f"the launcher put {there}, and not {each} on each of {', '.join(wanted)}: does the batch "
        "system give so many places to each of them?"
    )


def name(rank: int, world_size: int, node: str = "") -> str:
    """Return how errors call a rank: ``rank 1 of 2``, or ``worker`` where it is the only one.

    ``node``: where it runs, of ranks on several nodes: ``rank 1 of 2 on node n2``.
    """
    where = f" on node {node}" if node else ""
    return "worker" if world_size == 1 else f"rank {rank} of {world_size}{where}"


def errors(results: Sequence[RankResult], nodes: int = 1) -> tuple[str, ...]:
    """Return the error of a trial, one line; of several ranks the first one's, which it names.

    ``nodes``: on which the ranks run; of several the error names its own.
    """
    failed = [(r, r.error.splitlines()[-1]) for r in results if r.error]
    if not failed:
        return ()
    (first, text), *others = failed
    if first.world_size == 1:
        return (text,)
    if len(failed) == first.world_size and all(other == text for _, other in others):
        return (f"every rank: {text}",)
    more = f" ({len(others)} more failed)" if others else ""
    node = first.host if nodes > 1 else ""
    return (f"{name(first.rank, first.world_size, node)}: {text}{more}",)
