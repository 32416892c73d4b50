"""Which allocations the pairs of a contrast are of: a verdict speaks for these, not for a machine.

An allocation is a batch job on its nodes; outside of jobs it is the nodes alone.  A job that was
requeued has its number on other nodes perhaps, which makes two; on the same nodes it counts once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from iobench.analysis.contrast_results import AllocationResult
from iobench.analysis.hosts import nodes_of
from iobench.analysis.pairs import Pair


def allocations(pairs: Sequence[Pair]) -> list[AllocationResult]:
    """Return the allocations of these pairs, in the order in which they first ran."""
    found: dict[tuple[str, tuple[str, ...]], list[Pair]] = {}
    for pair in sorted(pairs, key=lambda pair: min(pair.arm.started, pair.base.started)):
        nodes = tuple(sorted({*nodes_of(pair.arm), *nodes_of(pair.base)}))
        found.setdefault((pair.arm.job or pair.base.job, nodes), []).append(pair)
    return [
        AllocationResult(job, nodes, len(mine), math.exp(fmean(map(_log_ratio, mine))))
        for (job, nodes), mine in found.items()
    ]


def _log_ratio(pair: Pair) -> float:
    arm, base = pair.seconds_per_sample
    return math.log(arm / base)
