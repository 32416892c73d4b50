"""The storage roofline: requests of several sizes and depths -> bandwidth, IOPS, latency, ridge.

docs/method.md, "The mount's own limits", after Little, "A proof for the queuing formula
L = lambda W", Operations Research 9(3), 1961: requests/s <= requests in flight / latency.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

BANDWIDTH, IOPS, LATENCY, METADATA = "bandwidth", "IOPS", "latency", "metadata"
#: Roofs whose ratio is below this are as tight as each other.
TIE = 1.1
#: Between two sizes the rate in bytes follows the size (exponent 1: requests/s bind) or does not
#: (exponent 0: bytes/s bind); in between, both do.
HALF = 0.5


@dataclasses.dataclass(frozen=True)
class Point:
    """Random reads of ``size`` bytes, ``depth`` of them in flight: completed requests/s."""

    size: int
    depth: int
    per_s: float

    @property
    def bytes_per_s(self) -> float:
        """Bytes/s of these requests."""
        return self.size * self.per_s


@dataclasses.dataclass(frozen=True)
class Opens:
    """Files opened and closed, at most ``per_s``.

    A lower bound where it is not ``reached``: no number of processes was large enough.
    """

    per_s: float
    reached: bool


@dataclasses.dataclass(frozen=True)
class MountLimits:
    """What a mount gives at most.

    ``bandwidth`` in bytes/s and ``iops`` in requests/s are lower bounds where they are not
    ``*_reached``: no measured size was large, or small, enough, or no depth deep enough.
    ``alone_s``: size in bytes -> seconds of a request that is alone in flight.  ``deepest``: the
    most requests that were in flight.  ``opens``: None where they were not measured.
    """

    bandwidth: float
    iops: float
    bandwidth_reached: bool
    iops_reached: bool
    alone_s: Mapping[int, float]
    deepest: int
    opens: Opens | None = None

    @property
    def ridge(self) -> float:
        """Bytes of the request from which on bandwidth binds, and below which IOPS do."""
        return self.bandwidth / self.iops

    def request_s(self, size: float) -> float:
        """Return the seconds of one request of ``size`` bytes that is alone in flight.

        Linear in the size between those measured, and beyond them.
        """
        known = sorted(self.alone_s.items())
        if len(known) == 1:
            return known[0][1]
        at = next((i for i, (s, _) in enumerate(known[1:-1], 1) if s >= size), len(known) - 1)
        (low, low_s), (high, high_s) = known[at - 1], known[at]
        return low_s + (max(size, known[0][0]) - low) * (high_s - low_s) / (high - low)


def opens(rates: Mapping[int, float]) -> Opens | None:
    """Return what opening files costs, of processes -> opens/s; None without one alone."""
    if not rates.get(1):
        return None
    reached = _exponent([*rates.items()]) < HALF
    return Opens(max(rates.values()), reached)


def mount(points: Sequence[Point], opened: Opens | None = None) -> MountLimits | None:
    """Return what the mount gives; None without requests that were alone in flight."""
    alone: dict[int, float] = {}
    for p in sorted(points, key=lambda p: -p.size):  # no request is slower than a larger one
        if p.depth == 1 and p.per_s > 0:
            alone[p.size] = min(1 / p.per_s, *list(alone.values())[-1:], math.inf)
    if not alone:
        return None
    best: dict[int, float] = {}
    for point in points:
        best[point.size] = max(best.get(point.size, 0.0), point.bytes_per_s)
    sizes = sorted(best.items())
    widest = [(p.depth, p.per_s) for p in points if p.size == sizes[-1][0]]
    smallest = [(p.depth, p.per_s) for p in points if p.size == sizes[0][0]]
    return MountLimits(
        bandwidth=sizes[-1][1],
        iops=sizes[0][1] / sizes[0][0],
        bandwidth_reached=_exponent(sizes[-2:]) < HALF and _exponent(widest) < HALF,
        iops_reached=_exponent(sizes[:2]) > HALF > _exponent(smallest),
        alone_s=alone,
        deepest=max(p.depth for p in points),
        opens=opened,
    )


def _exponent(curve: Sequence[tuple[int, float]]) -> float:
    """Return how a rate follows what was raised, over the last step; nan of a single point."""
    if len(curve) < 2:
        return math.nan
    (low, low_rate), (high, high_rate) = sorted(curve)[-2:]
    return math.log(high_rate / low_rate) / math.log(high / low)


@dataclasses.dataclass(frozen=True)
class Pattern:
    """What one sample asks of the mount, and how many readers ask at once.

    ``requests`` of ``size`` bytes and ``opens`` of files a sample.  ``rate``: samples/s of a replay
    of just this, cold.
    """

    requests: float
    size: float
    readers: int
    rate: float
    opens: float = 0.0


def roofs(found: MountLimits, pattern: Pattern) -> dict[str, float]:
    """Return the roofs of a pattern in samples/s; one that was not reached bounds nothing.

    None is below what the replay itself reached.  Where that is more than its readers' latency
    allows, read-ahead kept more requests in flight, and latency bounds nothing.
    """
    at = {}
    if found.bandwidth_reached:
        at[BANDWIDTH] = max(found.bandwidth / (pattern.requests * pattern.size), pattern.rate)
    if found.iops_reached:
        at[IOPS] = max(found.iops / pattern.requests, pattern.rate)
    if found.opens and found.opens.reached and pattern.opens:
        at[METADATA] = max(found.opens.per_s / pattern.opens, pattern.rate)
    latency = pattern.readers / (found.request_s(pattern.size) * pattern.requests)
    if latency * TIE >= pattern.rate:
        at[LATENCY] = latency
    return at


def binding(at: Mapping[str, float]) -> str | None:
    """Return the name of the lowest roof; None without any.

    Latency binds only where more requests in flight would give more: at one request in flight,
    the time of a request is all that a throttled device shows too.  A request of a file that holds
    no more includes its open: where that is over half of it, opens bind and not IOPS.
    """
    others = {name: rate for name, rate in at.items() if name != LATENCY}
    lowest = min(others, key=others.__getitem__, default=None)
    if lowest == IOPS and HALF * others.get(METADATA, math.inf) < others[IOPS]:
        lowest = METADATA
    if LATENCY in at and (lowest is None or at[LATENCY] * TIE < others[lowest]):
        return LATENCY
    return lowest


def deeper(found: MountLimits, pattern: Pattern) -> float:
    """Return samples/s with as many requests in flight as were measured at most.

    What was seen at that depth bounds it, reached or not.
    """
    most = [found.deepest / (found.request_s(pattern.size) * pattern.requests)]
    most.append(found.iops / pattern.requests)
    if found.opens and pattern.opens:
        most.append(found.opens.per_s / pattern.opens)
    if found.bandwidth_reached:
        most.append(found.bandwidth / (pattern.requests * pattern.size))
    return max(min(most), pattern.rate)
