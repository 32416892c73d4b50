"""MLPerf Storage's accelerator utilisation, and how much data its rules ask for.

MLPerf Storage's rules (v3.0), 3.1.2 and 3.3.2.  Seconds, bytes, samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

#: Steps of an epoch, and times of the hosts' memory, that the data must be enough for.
LEAST_STEPS, TIMES_MEMORY = 500, 5


class Wanted(NamedTuple):
    """Samples that an epoch must have at least, by each rule."""

    by_steps: int
    by_memory: int

    @property
    def samples(self) -> int:
        """Samples that satisfy both."""
        return max(self)


def utilisation(done_s: Sequence[float], step_s: float) -> float | None:
    """Return AU (0..1) of one accelerator's epoch: stated compute time / running time.

    ``done_s``: when each step ended.  What the first step did is left out, as the rules say; the
    compute time is the workload's own, not what was measured.  None for fewer than two steps.
    """
    if len(done_s) < 2 or done_s[-1] <= done_s[0]:
        return None
    return (len(done_s) - 1) * step_s / (done_s[-1] - done_s[0])


def wanted(batch: int, accelerators: int, memory_bytes: float, record_bytes: float) -> Wanted:
    """Return how many samples the rules ask for; ``memory_bytes``: of all hosts together."""
    return Wanted(
        LEAST_STEPS * batch * accelerators, math.ceil(TIMES_MEMORY * memory_bytes / record_bytes)
    )
