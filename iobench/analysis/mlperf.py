"""The rung ``feed`` of a workload as MLPerf Storage counts it: docs/mlperf.md."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from iobench.analysis.evidence import Evidence
from iobench.analysis.trainer_results import MlperfResult
from iobench.core.cases import Case
from iobench.core.records import Record
from iobench.core.stages import FEED
from iobench.equations import mlperf, stats


def mlperf_of(found: Evidence, case: Case) -> MlperfResult | None:
    """Return a case's AU by MLPerf Storage's rules; None where the suite is no workload of it."""
    asked, records = found.plan.mlperf, found.of(case, FEED)
    step_s = case.trainer_options.get("step_s")
    if not asked or not records or not isinstance(step_s, float | int):
        return None
    every = [_utilisation(record, float(step_s)) for record in records]
    epochs = [each for each in every if each is not None]
    if not epochs:
        return None
    data, last = found.plan.dataset, records[-1]
    ranks = last.ranks
    steps = min(len(rank.steps.done_s) for rank in ranks)
    samples = sum(sum(rank.steps.samples) for rank in ranks)
    size = sum(sum(rank.steps.bytes) for rank in ranks)
    memory = _memory_bytes(case, last)
    record_bytes = data.bytes / data.samples
    wanted = mlperf.wanted(case.batch, case.world_size, memory, record_bytes)
    au, floor = stats.t_interval(epochs), float(asked["au"])
    return MlperfResult(
        workload=str(asked["workload"]),
        au=au,
        floor=floor,
        reached=au.value >= floor,
        accelerators=case.world_size,
        epochs=len(epochs),
        steps=steps,
        samples=samples,
        bytes=size,
        samples_per_s=samples / fmean(_wall_s(record) for record in records),
        wanted_steps=mlperf.LEAST_STEPS,
        wanted_samples=wanted.samples,
        wanted_bytes=round(wanted.samples * record_bytes),
        memory_bytes=memory,
        short=_short(steps, size, memory),
    )


def _utilisation(record: Record, step_s: float) -> float | None:
    """Return the mean AU of an epoch's accelerators."""
    found = [mlperf.utilisation(rank.steps.done_s, step_s) for rank in record.ranks]
    known = [au for au in found if au is not None]
    return fmean(known) if known and len(known) == len(found) else None


def _wall_s(record: Record) -> float:
    """Return the seconds of an epoch, its first step included: samples/s count all of it."""
    return max(rank.steps.done_s[-1] for rank in record.ranks)


def _memory_bytes(case: Case, record: Record) -> int:
    """Return the memory of all hosts together, each alike (as the rules want them)."""
    facts = record.ranks[0].fingerprint
    return int(facts.get("memory_bytes") or 0) * case.nodes


def _short(steps: int, size: int, memory: int) -> Sequence[str]:
    lines = []
    if steps < mlperf.LEAST_STEPS:
        lines.append(f"{steps} steps an epoch, of {mlperf.LEAST_STEPS} at least")
    if not memory:
        lines.append("the hosts' memory is not known")
    elif size < mlperf.TIMES_MEMORY * memory:
        lines.append(
            f"{size / 1e9:,.1f} GB of data, of {mlperf.TIMES_MEMORY * memory / 1e9:,.1f} at least "
            f"({mlperf.TIMES_MEMORY} x the hosts' memory)"
        )
    return lines
