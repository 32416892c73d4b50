"""Ranks that hold the others up: which, on which node, and by what part of their step.

docs/method.md, "Many ranks"."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from iobench.analysis import once
from iobench.analysis.evidence import WARM_STATES, Evidence, standing
from iobench.analysis.ranks import began_after_s, in_step, running, steady_mean
from iobench.analysis.scale_results import StragglerResult
from iobench.analysis.windows import Times, between
from iobench.core.cases import Case
from iobench.core.records import RankResult, Record
from iobench.equations import stats

#: A rank whose own part of a step is longer than the others' by less is none.
SHARE = 0.05
STAGES = ("read", "decode", "load", "compute", "train")
WAIT, COMPUTE, ARRIVAL = "wait", "compute", "arrival"


@dataclasses.dataclass(frozen=True)
class _Slowest:
    """The rank of one trial whose own part of a step is the longest."""

    rank: int
    node: str
    excess_s: float
    share: float
    part: str
    others_wait_s: float | None


def stragglers(found: Evidence) -> list[StragglerResult]:
    """Return every straggler: the slowest rank of all repeats of a rung, by 5 % in each.

    One repeat names none: one of the ranks is always the slowest.
    """
    several = [case for case in found.plan.cases if case.world_size > 1]
    rungs = itertools.product(several, STAGES, ("cold", *WARM_STATES))
    return [one for rung in rungs if (one := _of_rung(found, *rung))]


def _of_rung(found: Evidence, case: Case, stage: str, cache: str) -> StragglerResult | None:
    slowest = _agreed(found.of(case, stage, cache))
    if not slowest:
        return None
    excess_s = stats.t_interval([one.excess_s for one in slowest])
    waits = [one.others_wait_s for one in slowest if one.others_wait_s is not None]
    if excess_s.low <= 0:
        return None
    return StragglerResult(
        case=case.label,
        stage=stage,
        cache=cache,
        rank=slowest[0].rank,
        node=slowest[0].node,
        excess_s=excess_s,
        share=fmean(one.share for one in slowest),
        cause=_cause(found, case, stage, cache, slowest),
        standing=standing(excess_s.n),
        others_wait_s=fmean(waits) if waits else None,
    )


def _agreed(records: Sequence[Record]) -> list[_Slowest]:
    """Return the slowest of every record, [] where they are not one rank or not by as much."""
    each = [_slowest(record) for record in records]
    known = [one for one in each if one and one.share >= SHARE]
    same = len({one.rank for one in known}) == 1 and len(known) == len(each)
    return known if same else []


@once.a_record
def _slowest(record: Record) -> _Slowest | None:
    """Return the slowest rank of a trial; None where the ranks do not part their own time.

    Ranks in step all take as long as the slowest: of those, what they waited for each other is no
    part of their own.
    """
    ranks = running(record.ranks, record.slices)
    if len(ranks) < 2 or not all(len(r.steps.done_s) > r.steps.warmup for r in ranks):
        return None
    if in_step(ranks) and not all(r.steps.peers_s for r in ranks):
        return None
    late = began_after_s(ranks)
    parts = [
        {
            WAIT: steady_mean(r.steps, between(r.steps.request_s, r.steps.ready_s)),
            COMPUTE: steady_mean(r.steps, _own_compute_s(r)),
            ARRIVAL: late[r.rank] / len(r.steps.done_s),
        }
        for r in ranks
    ]
    own = [sum(p.values()) for p in parts]
    place = own.index(max(own))
    others = [p for i, p in enumerate(parts) if i != place]
    usual = median(sum(p.values()) for p in others)
    more = {name: parts[place][name] - median(p[name] for p in others) for name in parts[place]}
    if usual <= 0:
        return None
    rank, excess = ranks[place], own[place] - usual
    waits = [
        steady_mean(r.steps, r.steps.peers_s)
        for i, r in enumerate(ranks)
        if i != place and r.steps.peers_s
    ]
    return _Slowest(
        rank=rank.rank,
        node=rank.host,
        excess_s=excess,
        share=excess / usual,
        part=max(more, key=more.__getitem__),
        others_wait_s=max(waits, default=None),
    )


def _own_compute_s(rank: RankResult) -> Times:
    """Return the seconds of every step, less what the rank waited for the others' gradients."""
    whole = between(rank.steps.ready_s, rank.steps.done_s)
    if not rank.steps.peers_s:
        return whole
    peers, exchange = rank.steps.peers_s, rank.steps.exchange_s
    own: Times = whole - np.asarray(peers, float) - np.asarray(exchange, float)
    return own


def _cause(found: Evidence, case: Case, stage: str, cache: str, slowest: Sequence[_Slowest]) -> str:
    """Return read, decode, compute or arrival.

    A rank that waits longer for its batches reads slower where it does not do so from memory too,
    else it prepares slower.
    """
    parts = [one.part for one in slowest]
    part = max(set(parts), key=parts.count)
    if part != WAIT:
        return part
    if stage == "read":
        return "read"
    if cache != "cold":
        return "decode"
    warm = _agreed(found.of(case, stage, *WARM_STATES))
    if warm and (warm[0].rank, warm[0].part) == (slowest[0].rank, WAIT):
        return "decode"
    return "read" if found.of(case, stage, *WARM_STATES) else "read or decode"
