"""The ranks of one trial, taken together as one job."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.analysis import once
from iobench.analysis.windows import thawed, thawed_parts
from iobench.core.records import IoCounters, RankResult, Record, Slices, Steps

#: Ranks that begin further apart than this share of the loop had the machine to themselves so long.
SKEW_SHARE = 0.01


def running(results: Sequence[RankResult], slices: Slices | None) -> Sequence[RankResult]:
    """Return the results as of a clock that stood still while the ranks were stopped."""
    return [_running(result, slices) for result in results] if slices else results


def _running(result: RankResult, slices: Slices) -> RankResult:
    steps = thawed(result.steps, result.began_s, slices)
    # how long a wait was stopped is not known without the time at which it began
    steps = dataclasses.replace(steps, peers_s=(), exchange_s=())
    first_batch_s = steps.ready_s[0] if steps.ready_s else 0.0
    startup = dataclasses.replace(result.startup, first_batch_s=first_batch_s)
    return dataclasses.replace(result, steps=steps, startup=startup)


def skew_s(results: Sequence[RankResult]) -> float:
    """Return how far apart ranks of one machine (one clock) began, seconds; 0: unknown."""
    began = [[r.began_s for r in ranks] for ranks in by_kernel(r for r in results if r.began_s)]
    return max((max(times) - min(times) for times in began), default=0.0)


def began_after_s(results: Sequence[RankResult]) -> dict[int, float]:
    """Return rank -> how long after the first rank of its machine it began, seconds; 0: unknown."""
    found: dict[int, float] = {}
    for ranks in by_kernel(results):
        first = min(r.began_s for r in ranks)
        found |= {r.rank: r.began_s - first if first else 0.0 for r in ranks}
    return found


def loop_s(results: Sequence[RankResult]) -> float:
    """Return how long the slowest rank's loop took, in seconds."""
    return max((r.steps.done_s[-1] for r in results if r.steps.done_s), default=0.0)


def note(results: Sequence[RankResult]) -> Mapping[str, Any]:
    """Return what a record notes of its ranks' start; {} for one rank or no loop.

    ``skew_s``: how far apart they began; ``late``: words, where that is over 1 % of the loop.
    """
    walls = [r.steps.done_s[-1] for r in results if r.steps.done_s]
    if len(walls) < 2:
        return {}
    apart, shortest = skew_s(results), min(walls)
    found: dict[str, Any] = {"skew_s": apart}
    if apart > SKEW_SHARE * shortest:
        found["late"] = (
            f"the ranks began {1e3 * apart:.1f} ms apart, {apart / shortest:.1%} of the loop: "
            "take more samples"
        )
    return found


def together(results: Sequence[RankResult]) -> IoCounters:
    """Return the ranks' counters as of one job: all machines' added, the longest wall."""
    found = [io for _, io in by_machine(results)]
    if not found:
        return IoCounters()
    names = [f.name for f in dataclasses.fields(IoCounters)]
    total = {name: sum(getattr(io, name) for io in found) for name in names}
    return IoCounters(**{**total, "wall_s": max(io.wall_s for io in found)})


def by_machine(results: Iterable[RankResult]) -> list[tuple[str, IoCounters]]:
    """Return (its nodes' names, the counters of its ranks) of each machine.

    Ranks' own are added; the machine's are of the rank that ran longest, which saw all of the
    others' work.
    """
    found = by_kernel(results)
    return [(", ".join(sorted({r.host for r in ranks})), _on_one(ranks)) for ranks in found]


def _on_one(ranks: Sequence[RankResult]) -> IoCounters:
    longest = max((r.io for r in ranks), key=lambda io: io.wall_s)
    own = ("rchar", "read_bytes", "major_faults", "cpu_user_s", "cpu_sys_s")
    return dataclasses.replace(longest, **{n: sum(getattr(r.io, n) for r in ranks) for n in own})


def by_kernel(results: Iterable[RankResult]) -> Iterable[list[RankResult]]:
    """Return the ranks by the kernel that they share: its clock, its counters.

    Two nodes may be namespaces of one machine.
    """
    found: dict[str, list[RankResult]] = {}
    for result in results:
        found.setdefault(str(result.fingerprint.get("boot_id") or result.host), []).append(result)
    return found.values()


def step_times(results: Sequence[RankResult]) -> tuple[list[float], list[float]]:
    """Return (wait, compute) of every step of ranks that go :func:`in_step`, in seconds.

    The job's wait is the longest of the ranks', its compute the shortest: docs/method.md.
    """
    waits = computes = np.zeros(0)
    for rank, result in enumerate(results):
        ready = np.asarray(result.steps.ready_s, float)
        wait = ready - np.asarray(result.steps.request_s, float)
        compute = np.asarray(result.steps.done_s, float) - ready
        if rank:
            n = min(len(waits), len(wait))
            wait = np.maximum(waits[:n], wait[:n])
            compute = np.minimum(computes[:n], compute[:n])
        waits, computes = wait, compute
    return waits.tolist(), computes.tolist()


#: What a step of ranks that exchange gradients consists of.
LOADING, COMPUTE, COMMUNICATION = "loading", "compute", "communication"


def step_parts(results: Sequence[RankResult]) -> Mapping[str, float]:
    """Return the parts of a step, in seconds a sample; {} where the ranks exchange nothing.

    Of each step those of the rank that the others wait for: its wait for its batch, its compute,
    the exchange.  They add up to the step of the job.
    """
    steps = [result.steps for result in results]
    n = min((len(s.done_s) for s in steps), default=0)
    if not n or any(len(s.exchange_s) < n for s in steps):
        return {}
    least, samples = np.full(n, np.inf), np.zeros(n)
    of_last = np.zeros((3, n))  # loading, compute, communication of the rank that waits least
    for each in steps:
        names = ("request_s", "ready_s", "done_s", "peers_s", "exchange_s", "samples")
        columns = (np.asarray(getattr(each, name)[:n], float) for name in names)
        request, ready, done, peers, exchange, count = columns
        parts = np.stack([ready - request, done - ready - peers - exchange, exchange])
        of_last = np.where(peers < least, parts, of_last)
        least, samples = np.minimum(least, peers), samples + count
    begin = min(max(each.warmup for each in steps), n - 1)
    seconds = of_last[:, begin:].sum(axis=1) / samples[begin:].sum()
    return dict(zip((LOADING, COMPUTE, COMMUNICATION), seconds.tolist(), strict=True))


def steady_mean(steps: Steps, column: Sequence[float] | npt.NDArray[np.float64]) -> float:
    """Return the mean of a column over the steps after the warm-up, or over all if none is."""
    values = np.asarray(column, float)
    steady = values[steps.warmup :]
    return float((steady if len(steady) else values).mean())


@once.a_record
def samples(record: Record) -> int:
    """Return how many samples all ranks of a record saw."""
    return sum(int(np.asarray(rank.steps.samples).sum()) for rank in record.ranks)


def probed(*records: Record) -> dict[str, list[float]]:
    """Return part of the serial probe -> seconds of every sample, of all ranks, as it ran."""
    parts: dict[str, list[float]] = {}
    for rank, slices in ((rank, record.slices) for record in records for rank in record.ranks):
        of_rank: Mapping[str, Sequence[float]] = rank.probe
        if slices:
            of_rank = thawed_parts(rank.probe, rank.began_s, slices)
        for part, seconds in of_rank.items():
            if part.endswith("_s"):
                parts.setdefault(part, []).extend(seconds)
    return parts


def in_step(results: Sequence[RankResult]) -> bool:
    """Return whether the ranks step together, because they exchange gradients."""
    return len(results) > 1 and all(exchange_s(r) is not None for r in results)


def parted(results: Sequence[RankResult]) -> str:
    """Return why ranks that exchange gradients did not train one net; "" where they did."""
    trainers = [r.notes.get("trainer") or {} for r in results]
    digests = [t.get("weights_digest") for t in trainers if isinstance(t, Mapping)]
    if len(set(filter(None, digests))) < 2:
        return ""
    return (
        "the ranks' weights differ after the run, so they did not train one net: did every rank "
        "begin with rank 0's weights and exchange in every step?"
    )


def exchange_s(result: RankResult) -> float | None:
    """Return the seconds a step that a rank's trainer says it spent exchanging gradients."""
    trainer = result.notes.get("trainer") or {}
    found = trainer.get("comm_s") if isinstance(trainer, Mapping) else None
    return None if found is None else float(found)
