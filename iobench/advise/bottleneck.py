"""The analysis -> what to do next, each line based on a measured number."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from iobench.analysis.case_results import CaseResult, PrepStall
from iobench.analysis.results import SuiteResult
from iobench.equations import roofline, stalls

#: A pipeline at or above this AU in both states needs no cure.
FINE_AU = 0.95
#: Reading this many times the bytes needed is worth a line.
AMPLIFIED = 1.2
#: Another pipeline has to be this much faster to be recommended on ladder numbers.
WORTH_MOVING = 1.2
MIB = 2**20
#: Only a case that is equal in these, and another pipeline, says what this one would gain.
ALIKE = (
    "runtime", "order", "transform", "batch", "workers", "world_size", "sharing", "placement",
    "decoder", "cpus", "memory_bytes",
)  # fmt: skip
#: A loader that decodes in one thread gains nothing from more workers.
ONE_THREAD = "this loader has one thread: use another loader"


@dataclasses.dataclass(frozen=True)
class Advice:
    """One line of advice for a case at a cache state."""

    case: str
    cache: str
    text: str


def advise(suite: SuiteResult) -> list[Advice]:
    """Return what to do next, in the order of the cases."""
    judged = [c for c in suite.pipelines if any(limit.regime for limit in c.limits.values())]
    cases = [c for c in judged if c.loader != "null"]
    out = []
    for case in cases:
        others = [c for c in cases if _comparable(case, c)]
        for cache in ("cold", "warm"):
            limit = case.limits[cache]
            if limit.regime:
                texts = _REGIMES[limit.regime](case, cache, others)
                out += [Advice(case.case, cache, text) for text in texts]
        out += [Advice(case.case, "cold", text) for text in _amplified(case)]
    return out


def _comparable(case: CaseResult, other: CaseResult) -> bool:
    """Return whether the cases differ in their pipeline, and in nothing else that sets rates."""
    return other.pipeline != case.pipeline and all(
        getattr(other, key) == getattr(case, key) for key in ALIKE
    )


def _fetch(case: CaseResult, cache: str, others: Sequence[CaseResult]) -> Iterator[str]:
    roofs, need = case.limits[cache].roofs, case.bytes.needed_per_sample
    alone = case.fixed_threads
    demand = min(roofs[r] for r in (roofline.LOAD, roofline.COMPUTE) if r in roofs)
    supply = min(roofs[r] for r in (roofline.READ, roofline.STORAGE) if r in roofs)
    if cache == "cold" and need and supply < demand:
        yield (
            f"reading gives {supply * need / MIB:,.0f} MiB/s and the job could use "
            f"{demand * need / MIB:,.0f}: stage the data to a faster filesystem (local disk, burst "
            "buffer, tmpfs)"
        )
    elif cache == "cold" and alone:
        yield (
            f"reading alone would do ({supply:,.0f} samples/s), but one thread reads and prepares "
            f"in turn; {ONE_THREAD}, or store what needs less preparing"
        )
    elif cache == "cold":
        yield (
            f"reading alone would do ({supply:,.0f} samples/s), but {_readers(case)} and prepare "
            "in turn: raise workers so that some read while others prepare"
        )
    warm = case.limits["warm"].roofs.get(roofline.READ)
    if cache == "cold" and warm and supply < demand < warm:
        share = stalls.cache_needed(warm, supply, demand, demand)
        yield f"about {math.ceil(100 * share)} % of the data cached would end the fetch stall too"
    if supply < demand:
        yield from _better(case, cache, others, "read", "reads")
    if case.limits[cache].binding == roofline.READ and supply < demand:
        yield (
            f"{ONE_THREAD}, for more requests in flight"
            if alone
            else f"raise workers above {case.workers}: more requests in flight"
        )


def _readers(case: CaseResult) -> str:
    if case.workers > 1:
        return f"{case.workers} workers read"
    return "one worker has to read" if case.workers else "the training loop itself has to read"


def _prep(case: CaseResult, cache: str, others: Sequence[CaseResult]) -> Iterator[str]:
    roofs = case.limits[cache].roofs
    workers = max(case.workers, 1)
    prep = min(roofs[r] for r in (roofline.LOAD, roofline.DECODE) if r in roofs)
    ranks = case.world_size
    wanted = stalls.cores_needed(roofs[roofline.COMPUTE], prep / workers / ranks)
    cores = case.cores
    each = f" of each of {ranks} ranks" if ranks > 1 else ""
    who = f"{workers} workers{each} prepare" if workers > 1 else f"one worker{each} prepares"
    if case.fixed_threads:
        who = f"one thread{each} prepares"
        remedy = f"{ONE_THREAD}, or store what needs less preparing"
    elif cores and wanted > cores:
        remedy = (
            f"it needs about {wanted} cores and this job has {cores}; ask for more cores, or "
            "prepare less per sample (raw or smaller images)"
        )
    else:
        about = f"{-(-wanted // ranks)} a rank" if ranks > 1 else f"{wanted}"
        remedy = f"raise workers to about {about} (and check that it scales)"
    yield (
        f"{who} {prep:,.0f} samples/s, the compute takes {roofs[roofline.COMPUTE]:,.0f}: {remedy}"
    )
    yield from _better(case, "warm", others, "load", "prepares")


def _compute(case: CaseResult, cache: str, others: Sequence[CaseResult]) -> Iterator[str]:
    headroom = case.limits[cache].headroom
    au = case.utilisation(cache)
    if headroom is None:
        return
    if au is not None and au.value < FINE_AU:
        yield f"the parts are fast enough alone, yet AU is {au.value:.2f}: {_idle(case, cache)}"
    elif headroom < roofline.TIE:
        yield "data and compute are as fast as each other: a faster accelerator would wait"
    else:
        gain = "nothing to gain from I/O here" if au else "nothing is seen to gain from I/O"
        why = "" if au else " (by the parts alone: AU is not known)"
        yield f"{gain}: data could feed an accelerator {headroom:.1f} x as fast{why}"


def _idle(case: CaseResult, cache: str) -> str:
    """Return why steps and batches that are fast enough alone are not so together."""
    stall = case.prep_stall_s
    waits = case.step_wait_s.get(cache) or case.step_wait_s.get("-")
    if not isinstance(stall, PrepStall) or not waits:  # or a program that reports no wait
        return (
            "steps wait for their batches, or the loader takes cores from them; raise prefetch or "
            "the batch, or add a core"
        )
    wait = stall.wait_s.value
    if cache == "cold":  # the stall is of warm trials
        wait = waits.mean / (case.batch * case.world_size)
    if stall.contention_s.value > wait:
        return (
            "the loader takes cores from the steps; bind trainer and workers to different cores, "
            "or add a core"
        )
    return "steps wait for their batches; raise prefetch or the batch"


def _better(
    case: CaseResult, cache: str, others: Sequence[CaseResult], stage: str, verb: str
) -> Iterator[str]:
    mine = case.rate(stage, cache)
    rates = [(r.value, o.pipeline) for o in others if (r := o.rate(stage, cache))]
    if not mine or not rates:
        return
    rate, best = max(rates)
    if rate > WORTH_MOVING * mine.value:
        yield f"{best} {verb} {rate / mine.value:.1f} x as fast here {cache}: use it"


def _amplified(case: CaseResult) -> Iterator[str]:
    factor = case.bytes.read_amplification
    if factor and math.isfinite(factor) and factor > AMPLIFIED:
        yield (
            f"{factor:.1f} x the bytes needed come from storage (read-ahead, whole pages, files of "
            "programs): turn read-ahead down for this device or format, or read in stored order"
        )


_REGIMES = {
    roofline.FETCH_BOUND: _fetch,
    roofline.PREP_BOUND: _prep,
    roofline.COMPUTE_BOUND: _compute,
}
