"""Which of a node's GPUs a rank uses."""

from __future__ import annotations

import os

from iobench.core.cases import Case
from iobench.core.errors import BackendUnavailable

VISIBLE = "CUDA_VISIBLE_DEVICES"


def choose(case: Case, local_rank: int) -> None:
    """Let this process see the GPU of its rank alone, where several ranks of a node use GPUs.

    The n-th rank takes the n-th of those that it sees; one that the launcher has given a single GPU
    keeps it.  To be called before any library looks for GPUs.  Raises BackendUnavailable where
    there are fewer than ranks.
    """
    if not case.uses_gpu or case.ranks_per_node == 1:
        return
    seen = [device.strip() for device in os.environ.get(VISIBLE, "").split(",") if device.strip()]
    if len(seen) == 1:
        return
    if seen and local_rank >= len(seen):
        raise BackendUnavailable(
            f"{case.ranks_per_node} ranks of this node use GPUs, and {VISIBLE} shows "
            f"{len(seen)}: ask for as many GPUs, or set ranks_per_node = {len(seen)}"
        )
    os.environ[VISIBLE] = seen[local_rank] if seen else str(local_rank)
