"""Which of a node's GPUs a rank uses."""

from __future__ import annotations

import os

from iobench.core.cases import Case
from iobench.core.errors import BackendUnavailable
from iobench.host import gpus


def choose(case: Case, local_rank: int) -> None:
    """Let this process see the GPU of its rank alone, where several ranks of a node use GPUs.

    The n-th rank takes the n-th of those that it sees; one that the launcher has given a single GPU
    keeps it.  To be called before any library looks for GPUs.  Raises BackendUnavailable where
    there are fewer than ranks.
    """
    if not case.uses_gpu or case.ranks_per_node == 1:
        return
    seen = gpus.chosen()
    if len(seen) == 1:
        return
    if reason := gpus.too_few(case.ranks_per_node):
        raise BackendUnavailable(reason)
    os.environ[gpus.VISIBLE] = seen[local_rank] if seen else str(local_rank)
