"""A case as its measured parts, and what training would give if one of them changed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from iobench.analysis.case_results import CaseResult
from iobench.analysis.results import SuiteResult
from iobench.equations import pipeline, roofline, stalls
from iobench.equations.pipeline import Parts
from iobench.equations.stats import LEVEL, Interval

Change = Callable[[Parts], Parts]


@dataclasses.dataclass(frozen=True)
class Model:
    """One case at one cache state: its parts by the means, by all lower and all upper limits.

    ``measured``: samples/s of training, None where only its parts were measured.
    """

    case: CaseResult
    cache: str
    value: Parts
    low: Parts
    high: Parts
    repeats: int
    measured: Interval | None

    @property
    def error(self) -> float | None:
        """How far training as measured is from what its parts say: predicted / measured - 1."""
        return self.value.rate / self.measured.value - 1 if self.measured else None

    @property
    def now(self) -> Interval:
        """Samples/s of training: as measured, or as its parts say."""
        return self.measured or self._interval([c.rate for c in self.corners])

    @property
    def corners(self) -> tuple[Parts, Parts, Parts]:
        """The parts by their means, lower and upper limits."""
        return self.value, self.low, self.high

    def changed(self, change: Change) -> Model:
        """Return the model with a change made to its parts."""
        value, low, high = map(change, self.corners)
        return dataclasses.replace(self, value=value, low=low, high=high)

    def gain(self, other: Model) -> Interval:
        """Return how many times faster than this one, as measured, ``other`` would train."""
        now, then = self.now, self._rates(other)
        if other.value.binding == self.value.binding:
            ratios = zip(self._rates(self), then, strict=True)
            return self._interval([b / a for a, b in ratios])
        most, least = (now.high, now.low) if now.limited else (math.inf, 0.0)
        return self._interval([then[0] / now.value, then[1] / most, _over(then[2], least)])

    def then(self, other: Model) -> Interval:
        """Return samples/s of ``other``'s training."""
        if other.value.binding != self.value.binding:
            return self._interval(self._rates(other))
        now, gain = self.now, self.gain(other)
        low, high = (now.low, now.high) if now.limited else (now.value, now.value)
        return self._interval([gain.value * now.value, gain.low * low, gain.high * high])

    def _rates(self, other: Model) -> list[float]:
        """Return the rate of each corner of ``other``.

        What training misses of the limit that binds now, it misses of that limit afterwards too,
        and of no other: of the compute so much time a step, of any other a share.
        """
        binding, now = self.value.binding, self.now.value
        if binding == pipeline.COMPUTE:
            lost = max(0.0, 1 / now - 1 / self.value.rate)
            slower = [
                dataclasses.replace(p, compute=1 / (1 / p.compute + lost)) for p in other.corners
            ]
            return [part.rate for part in slower]
        missed = now / self.value.rate if self.value.ahead else 1.0
        return [part.rate_with(binding, missed) for part in other.corners]

    def _interval(self, corners: Sequence[float]) -> Interval:
        value, low, high = corners[0], min(corners), max(corners)
        if self.repeats < 2:
            low, high = -math.inf, math.inf
        return Interval(value, low, high, LEVEL, self.repeats, "parts' limits")


def model(case: CaseResult, cache: str, suite: SuiteResult) -> Model | None:
    """Return the model of a case; None without what it prepares or what it computes."""
    roofs = case.limits[cache].roofs
    prepared = [r for r in (roofline.LOAD, roofline.DECODE) if r in roofs]
    if roofline.COMPUTE not in roofs or not prepared:
        return None
    served = {c.case: c for c in suite.pipelines}.get(case.compute_from, case)
    known = {
        roofline.COMPUTE: served.rate("compute", "-"),
        roofline.LOAD: _warm(case, "load"),
        roofline.DECODE: _warm(case, "decode"),
        roofline.READ: case.rate("read", cache),
        roofline.STORAGE: case.rate("ceiling", "cold"),
        roofline.LOAD_COLD: case.rate("load", "cold"),
    }
    intervals = {name: known.get(name) or _point(rate) for name, rate in roofs.items()}
    value, low, high = (
        _parts(case, cache, {n: _end(i, end) for n, i in intervals.items()})
        for end in ("value", "low", "high")
    )
    repeats = min((i.n for i in intervals.values()), default=1)
    handed = stalls.HANDOVER_S / (case.batch * case.world_size)
    low = dataclasses.replace(low, compute=1 / (1 / low.compute + handed))
    measured = case.limits[cache].measured_samples_per_s
    return Model(case, cache, value, low, high, repeats, measured)


def _over(rate: float, least: float) -> float:
    return rate / least if least > 0 else math.inf


def _end(rate: Interval, end: str) -> float:
    return float(getattr(rate, end if rate.limited else "value"))


def _warm(case: CaseResult, stage: str) -> Interval | None:
    return case.rate(stage, "warm") or case.rate(stage, "-")


def _point(rate: float) -> Interval:
    return Interval(rate, rate, rate, LEVEL, 1, "mean")


def _parts(case: CaseResult, cache: str, rates: dict[str, float]) -> Parts:
    load = min(rates[r] for r in (roofline.LOAD, roofline.DECODE) if r in rates)
    cold = cache == "cold"  # warm, reading is a part of loading
    read = rates.get(roofline.READ, math.inf) if cold else math.inf
    storage = rates.get(roofline.STORAGE, math.inf) if cold else math.inf
    fetch, together = min(read, storage), rates.get(roofline.LOAD_COLD)
    turns = pipeline.turns(fetch, load, together) if together and math.isfinite(fetch) else 0.0
    return Parts(
        compute=rates[roofline.COMPUTE],
        load=load,
        read=read,
        storage=storage,
        turns=turns,
        cpu_s=case.seen.load_cpu_s or 0.0,
        step_cpu_s=case.seen.compute_cpu_s or 0.0,
        cores=case.cores or math.inf,
        ahead=ahead(case),
    )


def ahead(case: CaseResult) -> bool:
    """Return whether batches are made while a step runs."""
    return case.workers > 0 or case.fixed_threads
