"""How fast training is, from what its parts give alone: docs/advice.md, "predict".

Sources.  [Shi] Shi, Wang, Chu, arXiv 1711.05979.  [Mohan] Mohan et al., "Analyzing and mitigating
data stalls in DNN training", VLDB 14(5), 2021.  Rates are samples/s; "derived" as in stalls.
"""

from __future__ import annotations

import dataclasses
import math

STORAGE, PREPARE, CPU, COMPUTE = "storage", "preparing", "cores", "compute"


@dataclasses.dataclass(frozen=True)
class Parts:
    """What the parts of a training job give alone, samples/s; infinite: no limit is known.

    ``load``: preparing what is in memory.  ``read``: what the readers get, of ``storage``, which is
    what the mount has for all.  ``turns``: 0 where reading hides behind preparing, 1
    where the same workers do both in turn.  ``cpu_s``, ``step_cpu_s``: CPU seconds a sample of
    loading and of a step.  ``ahead``: batches are made while a step runs.
    """

    compute: float
    load: float
    read: float = math.inf
    storage: float = math.inf
    turns: float = 0.0
    cpu_s: float = 0.0
    step_cpu_s: float = 0.0
    cores: float = math.inf
    ahead: bool = True

    @property
    def fetch(self) -> float:
        """Samples/s that reading gives."""
        return min(self.read, self.storage)

    @property
    def most(self) -> float:
        """Samples/s that the cores prepare, however many workers; infinite where not known."""
        return self.cores / self.cpu_s if self.cpu_s else math.inf

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds a sample of each limit; reading and preparing in turn add to the longer one."""
        read, prepare = 1 / self.fetch, 1 / self.load
        slower, faster = max(read, prepare), self.turns * min(read, prepare)
        return {
            STORAGE: read + faster if read == slower else 0.0,
            PREPARE: prepare + faster if read < slower or read == prepare else 0.0,
            CPU: (self.cpu_s + self.step_cpu_s) / self.cores,
            COMPUTE: 1 / self.compute,
        }

    @property
    def rate(self) -> float:
        """Samples/s of training: the tightest limit's ([Mohan], [Shi]); the sum without ahead."""
        return self.rate_with("", 1.0)

    def rate_with(self, limit: str, factor: float) -> float:
        """Return ``rate`` where one limit gives ``factor`` times what its part gave alone."""
        found = {name: s / (factor if name == limit else 1.0) for name, s in self.seconds.items()}
        if not self.ahead:
            return 1 / (max(found[STORAGE], found[PREPARE]) + found[COMPUTE])
        return 1 / max(found.values())

    @property
    def binding(self) -> str:
        """Name of the tightest limit."""
        found = self.seconds
        return max(found, key=found.__getitem__)


def workers_useful(parts: Parts, workers: int) -> int:
    """Return the workers that prepare as fast as the compute takes, or, if those are fewer, that
    keep all cores busy (derived).  ``parts``: of so many ``workers``, none being one.
    """
    return math.ceil(min(parts.compute, parts.most) / (parts.load / max(workers, 1)))


def turns(read: float, load: float, together: float) -> float:
    """Return the share of the shorter of reading and preparing that does not hide (derived).

    ``together``: samples/s of loading cold.  (1/together - max) / min, in 0..1.
    """
    longer, shorter = sorted((1 / read, 1 / load), reverse=True)
    return min(1.0, max(0.0, (1 / together - longer) / shorter)) if shorter else 0.0


def scaled(parts: Parts, factor: float) -> float:
    """Return ``load`` with ``factor`` times the workers: up to what the cores give (derived)."""
    if factor < 1:
        return parts.load * factor
    return max(parts.load, min(parts.load * factor, parts.most))


def mixed(cached: float, storage: float, fraction: float) -> float:
    """Return F = 1 / (x/C + (1-x)/S), the rate with a fraction x cached ([Mohan])."""
    return 1 / (fraction / cached + (1 - fraction) / storage)
