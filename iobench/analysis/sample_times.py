"""What single samples took while a pipeline ran, and what delivering batches in order cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from iobench.analysis.case_results import HeadOfLine, NoHeadOfLine, SampleTimes, Spread
from iobench.analysis.evidence import WARM_STATES, Evidence
from iobench.analysis.windows import Times
from iobench.core import registry
from iobench.core.cases import Case
from iobench.core.errors import SpecError
from iobench.core.records import RankResult, Record
from iobench.equations import delivery, stats
from iobench.host import columns

#: The slowest samples that are named.
NAMED = 5
#: Ranks whose delivery is modelled, at most: step by step, it is the slowest part of an analysis.
MODELLED = 64


def sample_times(found: Evidence, case: Case) -> dict[str, SampleTimes]:
    """Return cache state -> the spread of each part of a sample's time, all together as ``all``."""
    return {
        cache: times
        for cache in ("cold", "warm")
        if (times := _spreads(_ranks(_records(found, case, cache))))
    }


def head_of_line(found: Evidence, case: Case) -> dict[str, HeadOfLine | NoHeadOfLine]:
    """Return cache state -> what delivering batches in order cost."""
    return {
        cache: _head_of_line(case, records)
        for cache in ("cold", "warm")
        if (records := _records(found, case, cache))
    }


def _records(found: Evidence, case: Case, cache: str) -> list[Record]:
    """Return the ladder's records of training, or else of loading."""
    states = ("cold",) if cache == "cold" else WARM_STATES
    rungs = (found.of(case, stage, *states) for stage in ("train", "load"))
    ladders = ([r for r in rung if not r.trial.contrast] for rung in rungs)
    return next(filter(None, ladders), [])


def _ranks(records: Sequence[Record]) -> list[RankResult]:
    return [rank for record in records for rank in record.ranks]


def _spreads(ranks: Sequence[RankResult]) -> SampleTimes | None:
    kept = [rank.sample_times for rank in ranks if rank.sample_times]
    parts = [name for name in kept[0] if name != "id"] if kept else []
    if not parts:
        return None
    found = {name: _all(kept, name) for name in parts}
    whole, ids = sum(found.values(), np.zeros(1)), _all(kept, "id")
    slowest: dict[int, float] = {}
    for place in np.lexsort((ids, whole))[::-1]:
        slowest.setdefault(int(ids[place]), float(whole[place]))
        if len(slowest) == NAMED:
            break
    return SampleTimes(
        samples=len(whole),
        effective=stats.effective(whole.tolist()),
        parts={name.removesuffix("_s"): _spread(column) for name, column in found.items()},
        all=_spread(whole),
        slowest=[{"id": i, "seconds": seconds} for i, seconds in slowest.items()],
    )


def _all(kept: Sequence[Mapping[str, Sequence[float]]], name: str) -> Times:
    return np.concatenate([np.asarray(times[name], float) for times in kept])


def _spread(values: Times) -> Spread:
    ranked = np.sort(values)
    p50, p90, p99 = (float(ranked[math.ceil(p / 100 * len(ranked)) - 1]) for p in (50, 90, 99))
    return Spread(float(ranked.mean()), p50, p90, p99, float(ranked[-1]))


def _head_of_line(case: Case, records: Sequence[Record]) -> HeadOfLine | NoHeadOfLine:
    reason = _why_not(case, records)
    if reason:
        return NoHeadOfLine(reason=reason)
    ranks = [rank for rank in _ranks(records) if rank.steps.made_s]
    ranks = [columns.loaded(rank) for rank in ranks[:: math.ceil(len(ranks) / MODELLED)]]
    modelled = [_modelled(case, rank) for rank in ranks]
    samples = [int(np.sum(rank.steps.samples)) for rank in ranks]
    lost = [(a - b) / n for (a, b), n in zip(modelled, samples, strict=True)]
    held = [delivery.held_s(r.steps.request_s, r.steps.ready_s, r.steps.made_s) for r in ranks]
    return HeadOfLine(
        loss_s=stats.t_interval(lost),
        held_s=stats.t_interval([h / n for h, n in zip(held, samples, strict=True)]),
        gain=stats.t_interval([a / b for a, b in modelled]),
    )


def _modelled(case: Case, rank: RankResult) -> tuple[float, float]:
    """Return the seconds of a rank's loop as it was, in order, and as batches are made."""
    steps, ahead = rank.steps, case.workers * case.prefetch
    readings = steps.request_s, steps.ready_s, steps.done_s, steps.made_s
    took = delivery.batches(*readings, workers=case.workers, ahead=ahead)
    return steps.done_s[-1], delivery.as_made(took, case.workers, ahead)


def _why_not(case: Case, records: Sequence[Record]) -> str:
    """Return why nothing is known about the order of delivery, "" where it is."""
    try:
        in_turn = registry.load("loaders", case.loader).in_turn
    except SpecError as error:  # results of a plug-in that is not here
        return str(error)
    if not in_turn:
        return f"how loader {case.loader!r} deals out batches is not modelled"
    if not case.workers:
        return "workers = 0: nothing is made ahead"
    if case.loader_options.get("in_order") is False:
        return "in_order = false: batches come as they are made"
    if any(record.slices for record in records):
        return "arms took turns"
    if not any(rank.steps.made_s for rank in _ranks(records)):
        return "the records hold no time of single samples"
    return ""
