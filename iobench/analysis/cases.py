"""One case's rungs -> its rates, stalls, AU, binding limit, bytes, start-up and waits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from iobench import registry, roofline, stalls, stats
from iobench.contrasts import estimate
from iobench.errors import SpecError
from iobench.figures import (
    DATA_STAGES,
    WARM_STATES,
    Evidence,
    standing,
    startup_parts,
    startup_s,
    step_waits_s,
    trial_window,
    validity,
    why_missing,
    why_not_planned,
)
from iobench.model import EXPLORATORY, STAGES, VALID, Case, Record
from iobench.remarks import handover, remarks
from iobench.scaling import communication
from iobench.stalls import TrainTrial

PERCENTILES = (50, 90, 99)


def describe(found: Evidence, case: Case) -> dict[str, Any]:
    """Return everything the suite tells about one case, as JSON types."""
    compute, source = found.compute(case)
    stages = _stages(found, case)
    roofs = _roofs(found, case, compute)
    return {
        "case": case.label,
        "pipeline": case.pipeline,
        "runtime": case.runtime,
        "format": case.format,
        "loader": case.loader,
        "trainer": case.trainer,
        "order": case.order,
        "transform": case.transform,
        "batch": case.batch,
        "workers": case.workers,
        "world_size": case.world_size,
        "sharing": case.sharing,
        "placement": case.placement,
        "cpus": case.cpus,
        "memory_bytes": case.memory_bytes,
        "fixed_threads": _fixed_threads(case),
        "cores": _cores(found, case),
        "stages": stages,
        "compute_from": source,
        "comm": communication(found, case, compute),
        **_stalls(found, case, compute),
        "au": {c: _au(found.windows(case, "train", c), compute) for c in _caches(found, case)},
        "limits": {
            "cold": _limit(found, case, roofs["cold"], compute, cold=True),
            "warm": _limit(found, case, roofs["warm"], compute, cold=False),
        },
        "bytes": _bytes(found, case),
        "startup_s": _startup(found, case),
        "step_wait_s": {c: _waits(found, case, c) for c in _caches(found, case)},
        "probe": _probe([r for r in found.of(case, "probe") if not r.trial.contrast]),
        "handover_s": handover(found, case),
        "harness_step_s": _harness(found, case),
        "remarks": remarks(found, case),
        "validity": validity(
            found, [t.id for t in found.plan.trials if t.case.label == case.label]
        ),
    }


def _fixed_threads(case: Case) -> bool:
    """Tell whether the loader's threads are not to be chosen."""
    try:
        return bool(registry.load("loaders", case.loader).threads)
    except SpecError:  # results of a plug-in that is not here
        return False


# -- rates -----------------------------------------------------------------------------------


def _stages(found: Evidence, case: Case) -> dict[str, dict[str, Any]]:
    """Return stage -> cache -> rate; every planned rung is there, measured or not."""
    planned = {
        (t.stage, t.cache)
        for t in found.plan.trials
        if t.case.label == case.label and t.stage in STAGES
    }
    out: dict[str, dict[str, Any]] = {}
    for stage in STAGES:
        caches = sorted(c for s, c in planned if s == stage)
        for cache in caches:
            out.setdefault(stage, {})[cache] = _rate(found, case, stage, cache)
        if not caches:
            out[stage] = {}
            reason = why_not_planned(case, stage)
            if reason:
                out[stage]["reason"] = reason
    return out


def _rate(found: Evidence, case: Case, stage: str, cache: str) -> dict[str, Any]:
    if stage == "ceiling":
        return _ceiling(found.of(case, stage, cache), found, case)
    records = [r for r in found.of(case, stage, cache) if trial_window(r) is not None]
    times = [w.seconds_per_sample for w in found.windows(case, stage, cache)]
    if not times:
        return {"n": 0, "samples_per_s": None, "reason": why_missing(found, case, stage, cache)}
    seconds = stats.t_interval(times)
    needed = _per_sample(records)
    rate = _inverse(seconds)
    return {
        "n": len(times),
        "samples_per_s": estimate(rate),
        "seconds_per_sample": estimate(seconds),
        "bytes_per_s": None if needed is None else rate.value * needed,
        "standing": standing(records),
        "outliers": [records[i].trial.id for i in stats.outliers(times)],
    }


def _ceiling(records: Sequence[Record], found: Evidence, case: Case) -> dict[str, Any]:
    rates = [x for r in records if (x := ceiling_samples_per_s(r)) is not None]
    if not rates:
        return {
            "n": 0,
            "samples_per_s": None,
            "reason": why_missing(found, case, "ceiling", "cold"),
        }
    per_s = [float(r.ceiling["bytes_per_s"]) for r in records if r.ceiling.get("bytes_per_s")]
    return {
        "n": len(rates),
        "samples_per_s": estimate(_inverse(stats.t_interval([1 / x for x in rates]))),
        "seconds_per_sample": estimate(stats.t_interval([1 / x for x in rates])),
        "bytes_per_s": math.fsum(per_s) / len(per_s),
        "standing": standing(records),
        "outliers": [records[i].trial.id for i in stats.outliers(rates)],
    }


def ceiling_samples_per_s(record: Record) -> float | None:
    """Return fio's rate over the samples' own byte ranges, samples/s."""
    rate = record.ceiling.get("samples_per_s")
    return float(rate) if rate else None


def _inverse(seconds: stats.Interval) -> stats.Interval:
    """Return the rate 1/T; a limit of T at or below 0 leaves the rate without that limit."""
    return stats.Interval(
        1 / seconds.value,
        0.0 if math.isinf(seconds.high) else 1 / seconds.high,
        math.inf if seconds.low <= 0 else 1 / seconds.low,
        seconds.level,
        seconds.n,
        seconds.method,
    )


# -- stalls and AU ---------------------------------------------------------------------------


def _stalls(found: Evidence, case: Case, compute: Sequence[TrainTrial]) -> dict[str, Any]:
    cold = found.train(case, "cold")
    warm = found.train(case, *WARM_STATES)
    fetch: dict[str, Any] = {"value": None, "reason": ""}
    prep: dict[str, Any] = {"value": None, "reason": ""}
    if cold and warm:
        epochs = found.train(case, *WARM_STATES, whole=True)
        stall = stalls.fetch_stall(cold, epochs)
        fetch = _stall(stall) | {"waited_s": estimate(stalls.waited_fetch_s(cold, epochs))}
    else:
        missing = "cold" if not cold else "warm"
        fetch["reason"] = why_missing(found, case, "train", missing)
    if warm and compute:
        stall, wait, contention = stalls.prep_stall(warm, compute)
        prep = _stall(stall) | {"wait_s": estimate(wait), "contention_s": estimate(contention)}
    elif not warm:
        prep["reason"] = why_missing(found, case, "train", "warm")
    else:
        prep["reason"] = why_missing(found, case, "compute", "-")
    return {"fetch_stall_s": fetch, "prep_stall_s": prep}


def _stall(stall: stalls.Stall) -> dict[str, Any]:
    few = stall.interval.n < stats.WANTED_PAIRS
    return estimate(stall.interval) | {
        "bound_s": stall.bound_s,
        "paired": stall.paired,
        "standing": EXPLORATORY if few else VALID,
    }


def _au(train: Sequence[TrainTrial], compute: Sequence[TrainTrial]) -> dict[str, Any] | None:
    if not train or not compute:
        return None
    step_s = math.fsum(c.wall_s / c.steps for c in compute) / len(compute)
    return estimate(stats.t_interval([stalls.au(t.steps, step_s, t.wall_s) for t in train]))


def _caches(found: Evidence, case: Case) -> list[str]:
    """Return the cache states of this case's ``train`` trials, cold first."""
    caches = {
        t.cache for t in found.plan.trials if t.case.label == case.label and t.stage == "train"
    }
    return sorted(caches, key=lambda c: (c != "cold", c))


# -- limits ----------------------------------------------------------------------------------


def _roofs(
    found: Evidence, case: Case, compute: Sequence[TrainTrial]
) -> dict[str, dict[str, list[float]]]:
    """Return cache -> roof -> samples/s of every trial."""

    def rates(stage: str, *caches: str) -> list[float]:
        return [1 / w.seconds_per_sample for w in found.windows(case, stage, *caches)]

    storage = [x for r in found.ceilings(case) if (x := ceiling_samples_per_s(r)) is not None]
    shared = {
        roofline.DECODE: rates("decode", *WARM_STATES),
        roofline.LOAD: rates("load", *WARM_STATES),
        roofline.COMPUTE: [1 / w.seconds_per_sample for w in compute],
    }
    cold = {
        roofline.STORAGE: storage,
        roofline.READ: rates("read", "cold"),
        roofline.LOAD_COLD: rates("load", "cold"),
        **shared,
    }
    warm = {roofline.READ: rates("read", *WARM_STATES), **shared}
    return {
        "cold": {k: v for k, v in cold.items() if v},
        "warm": {k: v for k, v in warm.items() if v},
    }


def _limit(
    found: Evidence,
    case: Case,
    roofs: dict[str, list[float]],
    compute: Sequence[TrainTrial],
    *,
    cold: bool,
) -> dict[str, Any]:
    means = {name: len(v) / math.fsum(1 / x for x in v) for name, v in roofs.items()}
    measured = found.windows(case, "train", *(("cold",) if cold else WARM_STATES))
    entry: dict[str, Any] = {
        "roofs": means,
        "binding": None,
        "regime": None,
        "rate": None,
        "headroom": None,
        "next": None,
        "words": None,
        "predicted_samples_per_s": None,
        "measured_samples_per_s": None,
        "reason": "",
    }
    if measured:
        rate = _inverse(stats.t_interval([w.seconds_per_sample for w in measured]))
        entry["measured_samples_per_s"] = estimate(rate)
    if "null" in (case.loader, case.format, case.trainer):
        entry["reason"] = "a null part: no training job to limit"
        return entry
    if cold and roofline.READ not in means and roofline.STORAGE not in means:
        entry["reason"] = why_missing(found, case, "read", "cold")
        return entry
    limit = roofline.bind(means, cold=cold)
    if limit is None:
        stage, cache = ("compute", "-") if not compute else ("load", "warm")
        entry["reason"] = why_missing(found, case, stage, cache)
        return entry
    names = list(roofs)
    rate = stats.bootstrap(
        lambda *groups: min(float(g.mean()) for g in groups), [roofs[n] for n in names]
    )
    return entry | {
        "binding": limit.roof,
        "regime": limit.regime,
        "rate": limit.rate,
        "headroom": limit.headroom,
        "next": limit.next_regime or None,
        "words": limit.words,
        "predicted_samples_per_s": estimate(rate) | {"value": limit.rate},
    }


# -- bytes, start-up, waits, probe -----------------------------------------------------------


def _bytes(found: Evidence, case: Case) -> dict[str, Any]:
    """Return bytes a sample needed and measured, cold, and the read amplification."""
    records = [r for s in DATA_STAGES for r in found.of(case, s, "cold") if r.cache.bytes_needed]
    needed = sum(r.cache.bytes_needed for r in records)
    counted = [r for r in records if r.cache.bytes_storage is not None]
    storage = sum(r.cache.bytes_storage or 0 for r in counted)
    counted_needed = sum(r.cache.bytes_needed for r in counted)
    samples = sum(sum(rank.steps.samples) for r in records for rank in r.ranks)
    return {
        "needed_per_sample": needed / samples if samples else None,
        "read_per_sample": sum(r.cache.bytes_read for r in records) / samples if samples else None,
        "storage_per_sample": (
            storage / counted_needed * needed / samples if counted_needed and samples else None
        ),
        "read_amplification": (
            stalls.read_amplification(storage, counted_needed) if counted_needed else None
        ),
        "counter": next((r.cache.counter for r in counted if r.cache.counter), ""),
    }


def _per_sample(records: Sequence[Record]) -> float | None:
    needed = sum(rank.bytes_needed for r in records for rank in r.ranks)
    samples = sum(sum(rank.steps.samples) for r in records for rank in r.ranks)
    return needed / samples if needed and samples else None


def _startup(found: Evidence, case: Case) -> dict[str, Any] | None:
    records = [r for stage in ("load", "train") for r in found.of(case, stage) if r.ranks]
    times = [s for r in records if (s := startup_s(r)) is not None]
    if not times:
        return None
    parts = [p for r in records if (p := startup_parts(r)) is not None]
    return estimate(stats.t_interval(times)) | {
        name: math.fsum(getattr(p, name) for p in parts) / len(parts)
        for name in ("process_s", "imports_s", "open_s", "walk_s", "first_batch_s")
    }


def _waits(found: Evidence, case: Case, cache: str) -> dict[str, Any] | None:
    waits = sorted(step_waits_s(found.of(case, "train", cache)))
    if not waits:
        return None
    at = {f"p{p}": waits[min(len(waits) - 1, math.ceil(p / 100 * len(waits)) - 1)]
          for p in PERCENTILES}  # fmt: skip
    return {"steps": len(waits), "mean": math.fsum(waits) / len(waits), **at, "max": waits[-1]}


def _cores(found: Evidence, case: Case) -> int | None:
    """Return the cores that the ranks of this case could use together, as fingerprints say.

    A limit (cgroup) holds for all of them: they are in one group.
    """
    for record in found.of(case, "load") + found.of(case, "train"):
        affinity = {c for r in record.ranks for c in r.fingerprint.get("affinity") or ()}
        limits = [(r.fingerprint.get("limits") or {}).get("cpus") for r in record.ranks]
        limit = next(filter(None, limits), None)
        if affinity:
            return min(len(affinity), math.floor(limit) or 1) if limit else len(affinity)
    return None


def _probe(records: Sequence[Record]) -> dict[str, Any] | None:
    """Return the serial probe: mean seconds a sample of each part, and its share."""
    totals: dict[str, list[float]] = {}
    for record in records:
        for rank in record.ranks:
            for name, values in rank.probe.items():
                totals.setdefault(name, []).extend(values)
    means = {name: math.fsum(v) / len(v) for name, v in totals.items() if v}
    whole = math.fsum(means.values())
    if not whole:
        return None
    return {"seconds": means, "shares": {k.removesuffix("_s"): v / whole for k, v in means.items()}}


def _harness(found: Evidence, case: Case) -> float | None:
    """Return seconds a step of the measured loop itself: the null loader has nothing else."""
    if case.loader != "null":
        return None
    steps = [(w.wall_s, w.steps) for w in found.windows(case, "load", *WARM_STATES)]
    return math.fsum(w for w, _ in steps) / sum(n for _, n in steps) if steps else None
