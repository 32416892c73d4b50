"""The servers' cache by what is read again: working sets of growing size, two passes over each.

docs/filesystems.md, "Beyond the client".  Between the passes the client is emptied, so a second
pass that is faster came from the servers' memory.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

#: So many times as fast as its first pass a second one must be for at least so many sets, and for
#: half of those that count as kept, or nothing is told apart: rates vary.
FASTER, LEAST_SETS = 1.5, 2
#: Share of a set that its second pass took from memory, from which on the set counts as kept.
KEPT = 0.5
#: Data that are so many times as large as a cache have at most a fifth of their bytes in it, as
#: MLPerf Storage asks of a dataset against the memory of its hosts.
LARGER = 5.0


@dataclasses.dataclass(frozen=True)
class Reread:
    """A working set of ``nbytes`` and the rates of its two passes, bytes/s."""

    nbytes: int
    first_per_s: float
    again_per_s: float


@dataclasses.dataclass(frozen=True)
class Knee:
    """Between which sizes, in bytes, second passes fall to the rate of the first.

    ``low``: what the servers have kept at least.  ``high``: all sets up to the first that they did
    not keep, as those read twice before may have stayed beside it; None: they kept the largest one.
    """

    low: int
    high: int | None


def rates(sets: Sequence[Reread]) -> tuple[float, float]:
    """Return the rates of storage and of memory, bytes/s.

    Memory gives the fastest pass.  Some first passes can have come from it too, as those of sets
    that were read before; storage's is the median of the others, which are nearer to the slowest.
    """
    firsts = [s.first_per_s for s in sets]
    memory = max([*firsts, *(s.again_per_s for s in sets)])
    slower = [rate for rate in firsts if rate * rate <= memory * min(firsts)]
    return statistics.median(slower), memory


def kept(found: Reread, storage_per_s: float, memory_per_s: float) -> float:
    """Return the share (0..1) of a set that its second pass took from memory.

    From the time of a byte, which is memory's where it was kept and storage's where it was not.
    """
    storage, memory = 1 / storage_per_s, 1 / memory_per_s
    return min(1.0, max(0.0, (storage - 1 / found.again_per_s) / (storage - memory)))


def knee(sets: Sequence[Reread]) -> Knee | None:
    """Return the knee of one sweep; None where second passes are not clearly faster.

    Then the servers keep nothing of what was read, or held all of it before the first pass, or
    their memory is no faster than their storage.
    """
    ordered = sorted(sets, key=lambda s: s.nbytes)
    faster = [s.again_per_s >= FASTER * s.first_per_s for s in ordered]
    if sum(faster) < LEAST_SETS:
        return None
    storage, memory = rates(ordered)
    shares = [kept(s, storage, memory) for s in ordered]
    last = max((i for i, share in enumerate(shares) if share >= KEPT), default=-1)
    if sum(faster[: last + 1]) < max(LEAST_SETS, (last + 1) / 2):
        return None
    high = sum(s.nbytes for s in ordered[: last + 2]) if ordered[last + 1 :] else None
    return Knee(int(shares[last] * ordered[last].nbytes), high)


def bracket(knees: Sequence[Knee]) -> Knee | None:
    """Return what holds all knees of several sweeps; None without any."""
    if not knees:
        return None
    highs = [k.high for k in knees]
    known = [high for high in highs if high is not None]
    return Knee(min(k.low for k in knees), max(known) if len(known) == len(highs) else None)


def size(stated: int, found: Knee | None) -> float | None:
    """Return the bytes that a servers' cache is to be taken for, at most; None: not known.

    ``stated``: by the user, 0 where nobody has.  Infinite where all that is known is that it is
    larger than what was measured.
    """
    if found is None:
        return float(stated) if stated else None
    if found.low <= stated:
        return float(max(stated, found.high or 0))
    return math.inf if found.high is None else float(found.high)
