"""One case's rungs -> its rates, stalls, AU, bytes, start-up and waits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from iobench.analysis import evidence, payback
from iobench.analysis.beyond import servers_cache_of
from iobench.analysis.case_results import (
    MOST_AU,
    BytesResult,
    CaseResult,
    FetchStall,
    NoRate,
    NoStall,
    PrepStall,
    ProbeResult,
    RateResult,
    StageResult,
    StartupResult,
    WaitResult,
)
from iobench.analysis.compute_roof import compute_roof
from iobench.analysis.copies import copies
from iobench.analysis.evidence import WARM_STATES, Evidence
from iobench.analysis.limits import limits
from iobench.analysis.metadata import metadata_of
from iobench.analysis.mlperf import mlperf_of
from iobench.analysis.ranks import probed
from iobench.analysis.ranks import samples as samples_of
from iobench.analysis.remarks import handover, remarks
from iobench.analysis.sample_times import head_of_line, sample_times
from iobench.analysis.scaling import communication
from iobench.analysis.steady import steady_of
from iobench.analysis.storage import storage_of
from iobench.analysis.surroundings import surroundings
from iobench.core import registry, stages
from iobench.core.cases import Case, alike
from iobench.core.records import Record, Startup
from iobench.equations import stalls, stats
from iobench.equations.stalls import Window


def describe(found: Evidence, case: Case) -> CaseResult:
    """Return everything that the suite measured of one case."""
    compute, source = found.compute(case)
    metadata, storage = metadata_of(found, case), storage_of(found, case)
    return alike(
        CaseResult,
        case,
        case=case.label,
        fixed_threads=_fixed_threads(case),
        decoding_threads=decoding_threads(case),
        device=str(case.loader_options.get("device", "cpu")),
        cores=_cores(found, case),
        stages=_stages(found, case),
        compute_from=source,
        comm=communication(found, case, compute),
        fetch_stall_s=_fetch_stall(found, case),
        prep_stall_s=_prep_stall(found, case, compute),
        au={c: _au(found.windows(case, "train", c), compute) for c in _caches(found, case)},
        limits=limits(found, case, compute, storage),
        storage=storage,
        metadata=metadata,
        steady=steady_of(found, case),
        servers_cache=servers_cache_of(found, case),
        compute_roof=compute_roof(found, case),
        copy_s=copies(found, case, compute),
        mlperf=mlperf_of(found, case),
        bytes=_bytes(found, case),
        startup_s=_startup(found, case),
        step_wait_s={c: _waits(found, case, c) for c in _caches(found, case)},
        probe=_probe([r for r in found.of(case, stages.PROBE) if not r.trial.contrast]),
        sample_s=sample_times(found, case),
        head_of_line=head_of_line(found, case),
        handover_s=handover(found, case),
        harness_step_s=_harness(found, case),
        remarks=[
            *remarks(found, case),
            *_no_utilisation(found, case, compute),
            *payback.in_memory(found, case),
        ],
        validity=evidence.validity(found, [t.id for t in found.planned(case)]),
        seen=surroundings(found, case),
    )


def _fixed_threads(case: Case) -> bool:
    """Return whether the loader has a fixed number of threads."""
    loader = registry.known("loaders", case.loader)
    return bool(loader and loader.threads)


def decoding_threads(case: Case) -> int:
    """Return how many threads of a rank read and decode; 0 where that is not known."""
    loader = registry.known("loaders", case.loader)
    return int(loader.decoding_threads(case)) if loader else 0


def _stages(found: Evidence, case: Case) -> dict[str, StageResult]:
    """Return every stage with the rate of each planned rung, measured or not."""
    planned = found.rungs(case)
    out = {}
    named = {stage for stage, _ in planned if stages.of(stage).contrasted}
    for stage in stages.rungs():
        if stage not in (*stages.usual(), *named):
            continue
        caches = sorted(c for s, c in planned if s == stage)
        out[stage] = StageResult(
            {cache: _rate(found, case, stage, cache) for cache in caches},
            reason="" if caches else evidence.why_not_planned(case, stage),
        )
    return out


def _rate(found: Evidence, case: Case, stage: str, cache: str) -> RateResult | NoRate:
    if stage == "ceiling":
        return _ceiling(found, case)
    records = [r for r in found.of(case, stage, cache) if evidence.trial_window(r) is not None]
    times = [w.seconds_per_sample for w in found.windows(case, stage, cache)]
    if not times:
        return NoRate(reason=evidence.why_missing(found, case, stage, cache))
    needed = _per_sample(records)
    seconds = stats.t_interval(times)
    bytes_per_s = None if needed is None else needed * seconds.inverse().value
    return _rated(records, seconds, bytes_per_s, stats.outliers(times))


def _ceiling(found: Evidence, case: Case) -> RateResult | NoRate:
    records = found.of(case, "ceiling", "cold")
    rates = evidence.ceiling_samples_per_s(records)
    if not rates:
        return NoRate(reason=evidence.why_missing(found, case, "ceiling", "cold"))
    per_s = [float(r.ceiling["bytes_per_s"]) for r in records if r.ceiling.get("bytes_per_s")]
    seconds = stats.t_interval([1 / x for x in rates])
    return _rated(records, seconds, fmean(per_s), stats.outliers(rates))


def _rated(
    records: Sequence[Record], seconds: stats.Interval, bytes_per_s: float | None, far: list[int]
) -> RateResult:
    return RateResult(
        n=seconds.n,
        samples_per_s=seconds.inverse(),
        seconds_per_sample=seconds,
        bytes_per_s=bytes_per_s,
        standing=evidence.standing(len(records), records),
        outliers=[records[i].trial.id for i in far],
    )


def _fetch_stall(found: Evidence, case: Case) -> FetchStall | NoStall:
    cold, warm = found.train(case, "cold"), found.train(case, *WARM_STATES)
    if not cold or not warm:
        return NoStall(
            reason=evidence.why_missing(found, case, "train", "warm" if cold else "cold")
        )
    epochs = found.train(case, *WARM_STATES, whole=True)
    stall = _stall(stalls.fetch_stall(cold, epochs))
    return FetchStall(**stall, waited_s=stalls.waited_fetch_s(cold, epochs))


def _prep_stall(found: Evidence, case: Case, compute: Sequence[Window]) -> PrepStall | NoStall:
    warm = found.train(case, *WARM_STATES)
    if not warm or not compute:
        rung = ("compute", "-") if warm else ("train", "warm")
        return NoStall(reason=evidence.why_missing(found, case, *rung))
    stall, wait, contention = stalls.prep_stall(warm, compute)
    return PrepStall(**_stall(stall), wait_s=wait, contention_s=contention)


def _stall(stall: stalls.Stall) -> dict[str, Any]:
    """Return the fields of a StallResult."""
    common = {"bound_s": stall.bound_s, "paired": stall.paired}
    return {**vars(stall.interval), **common, "standing": evidence.standing(stall.interval.n)}


def _au(train: Sequence[Window], compute: Sequence[Window]) -> stats.Interval | None:
    if not train or not compute:
        return None
    step_s = fmean(c.step_s for c in compute)
    return stats.t_interval([stalls.au(t.steps, step_s, t.wall_s) for t in train])


def _no_utilisation(found: Evidence, case: Case, compute: Sequence[Window]) -> list[str]:
    """Return a remark where steps x compute step is more than all of the time: no utilisation."""
    states = {c: _au(found.windows(case, "train", c), compute) for c in _caches(found, case)}
    return [
        f"train {cache}: AU is n/a: the compute rung's step was {au.value:.2f} x a step of training"
        for cache, au in states.items()
        if au and au.value >= MOST_AU
    ]


def _caches(found: Evidence, case: Case) -> list[str]:
    """Return the cache states of this case's ``train`` trials, cold first."""
    caches = {cache for stage, cache in found.rungs(case) if stage == "train"}
    return sorted(caches, key=lambda c: (c != "cold", c))


def _bytes(found: Evidence, case: Case) -> BytesResult:
    """Return bytes a sample needed and measured, cold, and the read amplification."""
    cold = (r for stage in stages.contrasted() for r in found.of(case, stage, "cold"))
    records = [r for r in cold if r.cache.bytes_needed]
    needed = sum(r.cache.bytes_needed for r in records)
    counted = [r for r in records if r.cache.bytes_storage is not None]
    storage = sum(r.cache.bytes_storage or 0 for r in counted)
    counted_needed = sum(r.cache.bytes_needed for r in counted)
    samples = sum(samples_of(r) for r in records)
    return BytesResult(
        needed_per_sample=needed / samples if samples else None,
        read_per_sample=sum(r.cache.bytes_read for r in records) / samples if samples else None,
        storage_per_sample=(
            storage / counted_needed * needed / samples if counted_needed and samples else None
        ),
        read_amplification=storage / counted_needed if counted_needed else None,
        counter=next((r.cache.counter for r in counted if r.cache.counter), ""),
    )


def _per_sample(records: Sequence[Record]) -> float | None:
    needed = sum(rank.bytes_needed for r in records for rank in r.ranks)
    samples = sum(samples_of(r) for r in records)
    return needed / samples if needed and samples else None


def _startup(found: Evidence, case: Case) -> StartupResult | None:
    records = [r for stage in ("load", "train") for r in found.of(case, stage) if r.ranks]
    times = [s for r in records if (s := evidence.startup_s(r)) is not None]
    if not times:
        return None
    parts = [p for r in records if (p := evidence.startup_parts(r)) is not None]
    means = {f.name: fmean(getattr(p, f.name) for p in parts) for f in dataclasses.fields(Startup)}
    return StartupResult(**(vars(stats.t_interval(times)) | means))


def _waits(found: Evidence, case: Case, cache: str) -> WaitResult | None:
    waits = evidence.step_waits(found.of(case, "train", cache))
    if not waits.count:
        return None
    ranked = waits.seconds.tolist()
    p50, p90, p99 = (ranked[math.ceil(p / 100 * len(ranked)) - 1] for p in (50, 90, 99))
    taken_s = found.taken_s(case, cache)
    return WaitResult(waits.count, waits.mean, p50, p90, p99, ranked[-1], taken_s)


def _cores(found: Evidence, case: Case) -> int | None:
    """Return the cores that the ranks of this case (on a node, in one cgroup) could use together.

    Of several nodes all are added.
    """
    for record in found.of(case, "load") + found.of(case, "train"):
        affinity = {
            (r.host if case.nodes > 1 else "", core)
            for r in record.ranks
            for core in r.fingerprint.get("affinity") or ()
        }
        limits = [(r.fingerprint.get("limits") or {}).get("cpus") for r in record.ranks]
        limit = next(filter(None, limits), None)
        if affinity:
            most = case.nodes * (math.floor(limit) or 1) if limit else len(affinity)
            return min(len(affinity), most)
    return None


def _probe(records: Sequence[Record]) -> ProbeResult | None:
    means = {name: fmean(values) for name, values in probed(*records).items() if values}
    whole = math.fsum(means.values())
    if not whole:
        return None
    return ProbeResult(means, {k.removesuffix("_s"): v / whole for k, v in means.items()})


def _harness(found: Evidence, case: Case) -> float | None:
    """Return seconds a step of the measured loop itself: the null loader has nothing else."""
    if case.loader != "null":
        return None
    steps = [(w.wall_s, w.steps) for w in found.windows(case, "load", *WARM_STATES)]
    return math.fsum(w for w, _ in steps) / sum(n for _, n in steps) if steps else None
