"""What a rule is, and what it finds: a cause, its evidence, its remedy, the gain and a source."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from iobench.advise.forecast import Model, ahead, model
from iobench.analysis.case_results import CaseResult, LimitResult, WaitResult
from iobench.analysis.results import SuiteResult
from iobench.equations import roofline
from iobench.equations.stats import Interval

#: Cause of a case that has none.
NOTHING = "nothing to cure"
#: Steps wait for a few slow samples where the median wait is below this share of the mean one ...
FEW_SHARE = 0.25
#: ... and the longest is so many times what workers that take turns make of an equal wait.
MANY = 2
#: Only a case that is equal in these, and another pipeline, says what this one would gain.
ALIKE = (
    "runtime", "order", "transform", "batch", "workers", "world_size", "sharing", "placement",
    "decoder", "cpus", "memory_bytes",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What a rule says: ``symptom``, then what to do, and how many times faster training gets.

    ``evidence``: figures of this suite, by name.  ``gain`` None: not known.
    """

    symptom: str
    remedy: str
    evidence: Mapping[str, float | str | None] = dataclasses.field(default_factory=dict)
    gain: Interval | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Finding:
    """A cause found in a case at a cache state; ``source``: why it is one."""

    case: str
    cache: str
    cause: str
    symptom: str
    remedy: str
    evidence: Mapping[str, float | str]
    gain: Interval | None
    source: str

    @property
    def text(self) -> str:
        """The symptom and its remedy as one line."""
        return f"{self.symptom}: {self.remedy}" if self.remedy else self.symptom


@dataclasses.dataclass(frozen=True)
class Unjudged:
    """A cause that a case may have or not, and the run that would decide it."""

    case: str
    cache: str
    cause: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Scene:
    """What a rule looks at: a case at a cache state, and the suite that it belongs to."""

    case: CaseResult
    cache: str
    suite: SuiteResult

    @cached_property
    def model(self) -> Model | None:
        """The case as its parts; None without what it prepares or computes."""
        return model(self.case, self.cache, self.suite)

    @property
    def limit(self) -> LimitResult:
        """What binds at this cache state."""
        return self.case.limits[self.cache]

    @property
    def roofs(self) -> Mapping[str, float]:
        """Samples/s of every part that was measured."""
        return self.limit.roofs

    @property
    def ahead(self) -> bool:
        """Whether batches are made while a step runs."""
        return ahead(self.case)

    @property
    def waits(self) -> WaitResult | None:
        """Waits of the training steps at this cache state."""
        return self.case.step_wait_s.get(self.cache) or self.case.step_wait_s.get("-")

    @property
    def few_slow(self) -> bool:
        """Whether a few steps hold most of the wait, each longer than a whole step.

        Workers that prepare evenly deliver in bursts of as many batches as there are workers.
        """
        waits, burst = self.waits, max(self.case.workers, 1)
        if not waits or roofline.COMPUTE not in self.roofs:
            return False
        step_s = self.case.batch * self.case.world_size / self.roofs[roofline.COMPUTE]
        few = waits.p50 < FEW_SHARE * waits.mean and waits.max > MANY * burst * waits.mean
        return few and waits.max > step_s

    @cached_property
    def others(self) -> list[CaseResult]:
        """The cases that differ from this one in their pipeline alone."""
        judged = [c for c in self.suite.pipelines if any(x.regime for x in c.limits.values())]
        return [c for c in judged if c.loader != "null" and self._comparable(c)]

    def _comparable(self, other: CaseResult) -> bool:
        return other.pipeline != self.case.pipeline and all(
            getattr(other, key) == getattr(self.case, key) for key in ALIKE
        )


@dataclasses.dataclass(frozen=True)
class Rule:
    """One cause that can be found, in one row of a table of :mod:`iobench.advise.rules`.

    ``needs``: rungs, as (stage, cache state; "" is the one looked at), without which nobody can
    tell.  ``regimes``: where it is looked for (none: everywhere).
    """

    cause: str
    about: str
    source: str
    find: Callable[[Scene], Iterator[Diagnosis]]
    needs: Sequence[tuple[str, str]] = ()
    regimes: Sequence[str] = ()
    caches: Sequence[str] = ("cold", "warm")
