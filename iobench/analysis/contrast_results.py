"""What the analysis finds about one contrast, as values; the fields' names are the JSON keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from math import log
from statistics import stdev
from typing import Any

from iobench.equations import stats
from iobench.equations.stats import Interval

PASS, CONFOUNDED, UNKNOWN = "PASS", "CONFOUNDED", "UNKNOWN"


@dataclasses.dataclass(frozen=True)
class LookResult:
    """Which look gave the verdict (``taken``, 0: none yet), and the alpha spent until then."""

    planned: Sequence[int]
    taken: int
    alpha: float
    spent: float
    level: float
    level_equal: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A verdict and the paired time ratios, arm / base, that it rests on; None without a pair.

    ``interval`` and ``interval90`` are of this contrast alone, the ``simultaneous`` ones of its
    family.
    """

    ratio: float | None = None
    interval: Interval | None = None
    interval90: Interval | None = None
    simultaneous: Interval | None = None
    simultaneous90: Interval | None = None
    verdict: str = stats.NO_VERDICT
    pairs_needed: int | None = None
    smallest_effect: float | None = None
    outlier_blocks: Sequence[int] = ()
    ratios: Sequence[float] = ()
    note: str = ""

    @property
    def log_sd(self) -> float | None:
        """Standard deviation of the ratios' logarithms; None of fewer than two ratios."""
        return stdev(map(log, self.ratios)) if len(self.ratios) > 1 else None


@dataclasses.dataclass(frozen=True)
class SampleCost:
    """Medians a sample: CPU seconds, kernel seconds, bytes by read(), bytes across the mount."""

    cpu_s: float | None
    system_s: float | None
    read_bytes: float | None
    storage_bytes: float | None
    major_faults: float | None


@dataclasses.dataclass(frozen=True)
class Confounders:
    """What differs between the arms beside the factor under study: PASS, CONFOUNDED, UNKNOWN."""

    status: str
    differences: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class AttributionResult:
    """The stage that a difference comes from, "" with the ``reason`` where none is named.

    ``parts``: stage -> its difference, arm - base, in seconds a sample; ``source``: what showed it,
    in words; ``pairs`` of that.
    """

    stage: str
    reason: str
    pairs: int
    parts: Mapping[str, Interval]
    source: str = ""


@dataclasses.dataclass(frozen=True)
class CallsResult:
    """System calls a sample of both arms; ``differing``: the largest difference first."""

    arm: Mapping[str, float]
    base: Mapping[str, float]
    differing: Sequence[str] = ()
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class NodesPayback:
    """A prediction: seconds to stage on every node, and when that pays (None: never)."""

    nodes: int
    seconds: float
    pays_after_epochs: float | None


@dataclasses.dataclass(frozen=True)
class AllocationResult:
    """Pairs that ran in one allocation: a batch job ("": none) on its nodes.

    ``ratio``: geometric mean of their time ratios, arm / base.
    """

    job: str
    nodes: Sequence[str]
    pairs: int
    ratio: float


@dataclasses.dataclass(frozen=True)
class StagingResult:
    """What a placement cost, and after how many epochs it pays (None: never, or not known).

    ``at_nodes``: predicted, if the mount gives all nodes together the ``shared_bytes_per_s`` that
    one got, and each makes a copy of its own; () where that was not measured.
    """

    seconds: float
    bytes: int
    pays_after_epochs: float | None
    low: float | None
    high: float | None
    shared_bytes_per_s: float | None = None
    at_nodes: Sequence[NodesPayback] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContrastResult:
    """One contrast judged: what was compared, the outcome, and what explains or weakens it.

    ``pairs``: those that the verdict rests on, of ``pairs_run``.  ``final``: nothing that is still
    to run can change it.  ``over``: the keys in which the two cases differ.  ``work``: side -> cost
    of a sample.  ``startup_s``: paired difference, arm - base.  ``decoding_threads``: of a rank, in
    arm and base, where their numbers differ beside something else; () where not.
    ``allocations``: of its pairs.  ``unit``: what gives the intervals one ratio each.
    ``block_s``: what a block takes, all of its arms.  ``causes``: what made an INCONCLUSIVE one so.
    """

    id: str
    group: str
    arm: str
    base: str
    over: Sequence[str]
    case: str
    arm_name: str
    base_name: str
    stage: str
    cache: str
    primary: bool
    margin: float
    family: int
    pairs_run: int
    look: LookResult
    pairs: int
    pairs_planned: int
    repeated_blocks: Sequence[int]
    final: bool
    outcome: Outcome = dataclasses.field(
        default=Outcome(note="no complete pair yet"), metadata={"inline": True}
    )
    allocations: Sequence[AllocationResult] = ()
    unit: str = "block"
    startup_s: Interval | None = None
    work: Mapping[str, SampleCost] | None = None
    confounders: Confounders = Confounders(UNKNOWN)
    runtimes: Mapping[str, Mapping[str, Any]] = dataclasses.field(
        default_factory=lambda: {"arm": {}, "base": {}}
    )
    equal_order: bool | None = None
    without_repeats: Outcome | None = None
    attribution: AttributionResult | None = None
    calls: CallsResult | None = None
    staging: StagingResult | None = None
    not_separated: str = ""
    decoding_threads: Sequence[int] = ()
    block_s: float | None = None
    causes: Sequence[str] = ()
