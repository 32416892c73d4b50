"""How unevenly the machine's cores run: a few seconds of fixed work at a suite's start.

Python 3.9.
"""

from __future__ import annotations

import hashlib
import math
import statistics
import threading
from typing import List, NamedTuple

from iobench.core.clock import clock

#: Bytes hashed between two readings of the clock, without the interpreter's lock: 0.1 to 0.3 ms.
_PIECE = bytes(1 << 16)


class SpeedNoise(NamedTuple):
    """``sd``: of the log ratio of the speeds in two neighbouring slices of ``slice_s``."""

    sd: float
    slice_s: float
    seconds: float
    threads: int


def measure(seconds: float, slice_s: float, threads: int) -> SpeedNoise:
    """Hash on so many threads at once for ``seconds``; compare the speeds of neighbouring slices.

    All threads together are one arm, as a loader's workers are.
    """
    count = 2 * max(2, int(seconds / slice_s / 2))
    begun = clock()
    done = [[0] * count for _ in range(threads)]
    crew = [threading.Thread(target=_hash, args=(begun, slice_s, each)) for each in done]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    speeds = [max(sum(pieces), 1) for pieces in zip(*done)]
    logs = [math.log(a / b) for a, b in zip(speeds[::2], speeds[1::2])]
    return SpeedNoise(statistics.stdev(logs), slice_s, clock() - begun, threads)


def _hash(begun: float, slice_s: float, done: List[int]) -> None:
    """Count the pieces that were hashed in each slice since ``begun``."""
    while True:
        hashlib.sha256(_PIECE)
        now = int((clock() - begun) / slice_s)
        if now >= len(done):
            return
        done[now] += 1
