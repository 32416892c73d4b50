"""What the analysis finds about one suite, as values, and the JSON form of every result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from iobench.analysis.case_results import CaseResult, Validity
from iobench.analysis.contrast_results import ContrastResult
from iobench.analysis.scale_results import ScalingStudy, StartResult, StragglerResult
from iobench.analysis.trajectories import Trajectory
from iobench.data.accounting import Accounting
from iobench.equations.stats import Interval


def to_json(value: Any) -> Any:
    """Return a result as plain JSON types; an infinite number, or NaN, is None.

    A field marked ``inline`` gives way to its own keys; an ``optional`` one is left out when empty.
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    document: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = to_json(getattr(value, field.name))
        if "inline" in field.metadata:
            document |= item
        elif "optional" not in field.metadata or item not in (None, ""):
            document[field.name] = item
    if isinstance(value, Interval):
        document["level"] = round(value.level, 6)
    return document


@dataclasses.dataclass(frozen=True)
class DatasetResult:
    """The dataset that a suite measured; ``files``: what became of the files of a user's tree."""

    name: str
    source: str
    samples: int
    bytes: int
    mean_bytes: float | None
    classes: int
    digest: str
    root: str
    in_place: bool
    files: Accounting | None = dataclasses.field(default=None, metadata={"optional": True})


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """A check over all trials; ``ok`` None: not known, for the ``reason`` given.

    ``compared``: how many were, within ``groups`` of those that should be equal.
    """

    ok: bool | None
    reason: str = ""
    compared: int = 0
    groups: int = 0


@dataclasses.dataclass(frozen=True)
class Checks:
    """Whether all trials saw the same samples, and every format holds the same bytes."""

    same_samples: CheckResult
    same_bytes: CheckResult
    samples_digest: str | None


@dataclasses.dataclass(frozen=True)
class FastestResult:
    """The ranking of a rung; ``judged``: contrasts of the first with every other agree with it."""

    case: str
    samples_per_s: float
    ranked: Sequence[str]
    judged: bool


@dataclasses.dataclass(frozen=True)
class TimeSpent:
    """Seconds that a suite took, pauses left out, and those of them inside measured loops."""

    suite_s: float = 0.0
    loops_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class HostResult:
    """A host with usable records; ``figures``: it gives all figures but those of pairs."""

    host: str
    jobs: Sequence[str]
    trials: int
    figures: bool


@dataclasses.dataclass(frozen=True)
class SuiteResult:
    """The analysis of one suite; ``fastest``: "stage cache" -> the ranking of that rung.

    ``complete``: every planned trial has a usable record.  ``missing``: answers that there are not,
    with the reason.
    """

    schema: int
    name: str
    created: str
    version: str
    seed: int
    dataset: DatasetResult
    notes: Sequence[str]
    complete: bool
    validity: Validity
    checks: Checks
    pipelines: Sequence[CaseResult]
    contrasts: Sequence[ContrastResult]
    fastest: Mapping[str, FastestResult]
    missing: Sequence[str] = ()
    hosts: Sequence[HostResult] = ()
    studies: Sequence[ScalingStudy] = ()
    trajectories: Sequence[Trajectory] = ()
    stragglers: Sequence[StragglerResult] = ()
    starts: Sequence[StartResult] = ()
    time: TimeSpent = TimeSpent()
