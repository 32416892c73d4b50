"""The input-pipeline roofline: which ceiling binds, and how far the next is.

docs/method.md, "The binding limit", after Williams, Waterman, Patterson, "Roofline: an insightful
visual performance model for multicore architectures", CACM 52(4), 2009.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

#: Within this ratio of fio's rate a read rung is at the storage's limit, not at its own.
STORAGE_REACHED = 0.85
#: Roofs whose ratio is below this bind together.
TIE = 1.05

STORAGE, READ, DECODE, LOAD, COMPUTE = "storage", "read", "decode", "load", "compute"
#: The input pipeline from cold: not a ceiling of one resource but what reading and preparing give
#: together, less than either where the same workers do both in turn.
LOAD_COLD = "load_cold"
FETCH_BOUND, PREP_BOUND, COMPUTE_BOUND = "fetch-bound", "prep-bound", "compute-bound"


@dataclasses.dataclass(frozen=True)
class Limit:
    """What ``binding`` roof there is (storage, read, decode, load, compute), and its regime.

    ``rate``: samples/s of the binding roof.  ``headroom``: how many times faster the next
    *regime* is, i.e. what curing this one alone could give; ``next`` names it.
    """

    binding: str
    regime: str
    rate: float
    headroom: float
    next: str
    words: str


@dataclasses.dataclass(frozen=True)
class Roofs:
    """Williams' two roofs: ``peak`` in FLOP/s, ``bandwidth`` of the memory in bytes/s."""

    peak: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        """FLOP a byte from which on the peak binds."""
        return self.peak / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """Return FLOP/s at most, at so many FLOP a byte of memory traffic."""
        return min(self.peak, intensity * self.bandwidth)

    def least_intensity(self, flops: float) -> float:
        """Return the FLOP a byte that a program has at least, which reaches ``flops``."""
        return flops / self.bandwidth


def bind(roofs: Mapping[str, float], *, cold: bool) -> Limit | None:
    """Name the binding roof among measured rates, samples/s (derived).

    ``roofs`` may lack any roof; a warm state leaves out the storage.  Within a regime the
    narrower roof is named: a read rung at fio's rate is the storage's limit, below it its own;
    a load rung at the decode rung's rate is limited by decoding.  None without a load or decode
    roof, or without compute: then "what binds" would be a guess.
    """
    at = {name: rate for name, rate in roofs.items() if cold or name != STORAGE}
    fetch = [at[r] for r in (READ, STORAGE) if r in at]
    prep = [at[r] for r in (LOAD, DECODE) if r in at]
    if COMPUTE not in at or not prep:
        return None
    regimes = {PREP_BOUND: min(prep), COMPUTE_BOUND: at[COMPUTE]}
    if fetch:
        regimes[FETCH_BOUND] = min(fetch)
    together = at.get(LOAD_COLD, math.inf) if cold else math.inf
    if fetch:  # no slower than the times' sum: what is below that is noise, not turns
        together = max(together, 1 / (1 / min(fetch) + 1 / min(prep)))
    if cold and LOAD_COLD in at and together * TIE < min(regimes.values()):
        return _in_turn(at, regimes, together)
    (regime, rate), (following, next_rate), *_ = sorted(regimes.items(), key=lambda item: item[1])
    roof, headroom = _roof(regime, at), next_rate / rate
    words = _words(roof, at, headroom, following, cold=cold)
    return Limit(roof, regime, rate, headroom, following, words)


def _in_turn(at: Mapping[str, float], regimes: Mapping[str, float], rate: float) -> Limit:
    """Name what binds where workers read and prepare in turn, so that the times add up (derived).

    The regime is the one whose cure saves more time a sample: fetching 1/rate - 1/L_warm,
    preparing 1/L_warm - 1/G.  ``rate``: what both give together.
    """
    warm = regimes[PREP_BOUND]
    fetch, prep = 1 / rate - 1 / warm, max(0.0, 1 / warm - 1 / at[COMPUTE])
    regime, roof, what, other = FETCH_BOUND, READ, "reading", "preparing"
    if fetch < prep:
        regime, roof, what, other = PREP_BOUND, LOAD, "preparing", "reading"
    others = {k: v for k, v in regimes.items() if k != regime}
    following = min(others, key=others.__getitem__)
    enough = "each alone would do, " if min(regimes.values()) >= at[COMPUTE] else ""
    words = (
        f"{what}, which takes turns with {other} in the same workers: {enough}together they give "
        f"about {rate:,.0f} samples/s"
    )
    return Limit(roof, regime, rate, others[following] / rate, following, words)


def _roof(regime: str, at: Mapping[str, float]) -> str:
    if regime == COMPUTE_BOUND:
        return COMPUTE
    own, outer = (LOAD, DECODE) if regime == PREP_BOUND else (READ, STORAGE)
    reached = outer in at and at.get(own, math.inf) >= STORAGE_REACHED * at[outer]
    return outer if reached else own


def _words(
    roof: str, at: Mapping[str, float], headroom: float, following: str, *, cold: bool
) -> str:
    below = "" if cold else ", from memory"
    storage = "what fio gets from this mount; reading alone was not measured"
    if cold and STORAGE not in at:
        below = ": no storage ceiling was measured to compare with"
    elif STORAGE in at and READ in at:
        share = f"{at[READ] / at[STORAGE]:.0%} of what fio gets from this mount"
        below, storage = f": this loader and format get {share}", f"reading gets {share}"
    what = {
        STORAGE: f"the storage: {storage}",
        READ: f"reading{below}",
        DECODE: "decoding samples",
        LOAD: "preparing samples (all that the loader does with what it has read)",
        COMPUTE: "the compute: the input pipeline alone is faster",
    }[roof]
    if headroom < TIE:
        return f"{what}; {following.removesuffix('-bound')} is as tight"
    away = f"{headroom:.1f}" if headroom < 10 else f"{headroom:,.0f}"
    return f"{what}; the next limit ({following.removesuffix('-bound')}) is {away} x away"
