"""What can limit training here: the roofs of the current case decide which knobs are tried."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from iobench.analysis.case_results import CaseResult
from iobench.equations import pipeline, roofline

#: What a knob acts on: reading, preparing, the queue between loader and trainer, shared cores.
READ, PREPARE, OVERLAP, CORES = "read", "prepare", "overlap", "cores"
#: A part that alone is so many times as fast as the compute does not limit training.
SLACK = 2.0
#: Below this share of the compute, on all cores, the queue is always empty: its depth is no limit.
NEVER_FULL = 0.7


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Samples/s of the parts of the current case, and the cores that it has.

    ``headroom``: how many times faster training is if the loader costs nothing.  ``cpu_s``: CPU
    seconds a sample of loading; 0: not known.  ``alike``: the effective number of samples
    (:func:`~iobench.equations.stats.effective`) over their number; 1 where all take equally long.
    """

    compute: float
    train: float
    roofs: Mapping[str, float]
    workers: int
    cores: int
    trains_here: bool  # the trainer computes on the loader's cores
    cpu_s: float = 0.0
    alike: float = 1.0

    @property
    def headroom(self) -> float:
        """Compute alone over training as it is."""
        return self.compute / self.train

    def why_not(self, part: str) -> str:
        """Return why a part cannot limit training, with the figures; "" where it may."""
        if part == CORES:
            return "" if self.trains_here else "the trainer does not compute on the loader's cores"
        if part == OVERLAP:
            parts = self._parts()
            most = max(parts.load, parts.most)
            if most >= NEVER_FULL * self.compute:
                return ""
            return (
                f"{self.cores} cores prepare at most about {most:,.0f} samples/s, the compute "
                f"takes {self.compute:,.0f}: the queue is always empty"
            )
        found = self._read() if part == READ else self._prepared()
        if found < SLACK * self.compute:
            return ""
        what = "reading" if part == READ else "preparing"
        return f"{what} gives {found:,.0f} samples/s, the compute takes {self.compute:,.0f}"

    def useful_workers(self) -> int:
        """Return the workers that prepare as fast as the compute takes, or that fill the cores.

        One that waits for its data leaves its core to others.  0 where nothing is known of it.
        """
        parts = self._parts()
        return pipeline.workers_useful(parts, self.workers) if parts.load else 0

    def _parts(self) -> pipeline.Parts:
        """Return the parts; where their CPU seconds are not known, a worker keeps a core busy."""
        prepared = self._prepared()
        busy = min(max(self.workers, 1), self.cores) / prepared if prepared else 0.0
        return pipeline.Parts(self.compute, prepared, cpu_s=self.cpu_s or busy, cores=self.cores)

    def _read(self) -> float:
        known = [self.roofs[r] for r in (roofline.READ, roofline.STORAGE) if r in self.roofs]
        return min(known, default=0.0)

    def _prepared(self) -> float:
        known = [self.roofs[r] for r in (roofline.LOAD, roofline.DECODE) if r in self.roofs]
        return min(known, default=0.0)


def bounds(case: CaseResult, cache: str, *, cores: int, trains_here: bool) -> Bounds | None:
    """Return the bounds that a suite measured of a case; None where compute or train is missing."""
    state = "cold" if cache == "cold" else "warm"
    limit = case.limits[state]
    compute, train = limit.roofs.get(roofline.COMPUTE), limit.measured_samples_per_s
    if compute is None or train is None:
        return None
    cpu_s = case.seen.load_cpu_s or 0.0
    times = case.sample_s.get(state)
    alike = (times.effective / times.samples if times else 0.0) or 1.0
    return Bounds(compute, train.value, limit.roofs, case.workers, cores, trains_here, cpu_s, alike)
