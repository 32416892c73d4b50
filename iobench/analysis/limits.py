"""One case's rates -> what limits it, cold and warm: docs/method.md, "The binding limit"."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from iobench.analysis.case_results import LimitResult
from iobench.analysis.evidence import WARM_STATES, Evidence, ceiling_samples_per_s, why_missing
from iobench.analysis.storage_results import StorageResult
from iobench.core.cases import Case, alike
from iobench.equations import roofline, stats
from iobench.equations.stalls import Window


def limits(
    found: Evidence, case: Case, compute: Sequence[Window], storage: StorageResult | None
) -> dict[str, LimitResult]:
    """Return the limit of a case, cold and warm.

    ``compute``: the compute rung that serves it.  ``storage``: what its mount gives.
    """

    def rates(stage: str, *caches: str) -> list[float]:
        return [1 / w.seconds_per_sample for w in found.windows(case, stage, *caches)]

    shared = {
        roofline.DECODE: rates("decode", *WARM_STATES),
        roofline.LOAD: rates("load", *WARM_STATES),
        roofline.COMPUTE: [1 / w.seconds_per_sample for w in compute],
    }
    cold = {
        roofline.STORAGE: ceiling_samples_per_s(found.shared(case, "ceiling")),
        roofline.READ: rates("read", "cold"),
        roofline.LOAD_COLD: rates("load", "cold"),
        **shared,
    }
    warm = {roofline.READ: rates("read", *WARM_STATES), **shared}
    below = _limit(found, case, cold, cold=True)
    return {"cold": _of_mount(below, storage), "warm": _limit(found, case, warm)}


def _of_mount(limit: LimitResult, storage: StorageResult | None) -> LimitResult:
    """Add which of the mount's own limits binds, where its storage does."""
    if storage is None or storage.binding is None or limit.binding != roofline.STORAGE:
        return limit
    words = f"{limit.words}; {storage.words}"
    return dataclasses.replace(limit, storage_roof=storage.binding, words=words)


def _limit(
    found: Evidence, case: Case, rates: Mapping[str, list[float]], *, cold: bool = False
) -> LimitResult:
    """Return what binds; ``rates``: roof -> samples/s of every trial."""
    roofs = {name: values for name, values in rates.items() if values}
    means = {name: len(v) / math.fsum(1 / x for x in v) for name, v in roofs.items()}
    measured = found.windows(case, "train", *(("cold",) if cold else WARM_STATES))
    limit, reason = None, ""
    if "null" in (case.loader, case.format, case.trainer):
        reason = "a null part: no training job to limit"
    elif cold and roofline.READ not in means and roofline.STORAGE not in means:
        reason = why_missing(found, case, "read", "cold")
    elif (limit := roofline.bind(means, cold=cold)) is None:
        rung = ("load", "warm") if roofline.COMPUTE in means else ("compute", "-")
        reason = why_missing(found, case, *rung)
    times = [w.seconds_per_sample for w in measured]
    return alike(
        LimitResult,
        limit,
        roofs=means,
        predicted_samples_per_s=limit and _predicted(list(roofs.values()), limit.rate),
        measured_samples_per_s=stats.t_interval(times).inverse() if times else None,
        reason=reason,
    )


def _predicted(rates: Sequence[Sequence[float]], rate: float) -> stats.Interval:
    spread = stats.bootstrap(_slowest_mean, rates)
    return dataclasses.replace(spread, value=rate)


def _slowest_mean(*groups: Any, axis: int) -> Any:
    return np.minimum.reduce([g.mean(axis=axis) for g in groups])
