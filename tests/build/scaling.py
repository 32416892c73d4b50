"""Suites of one pipeline on several numbers of ranks, their steps computed from stated parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from iobench.core.cases import Case, Dataset, Plan, Trial
from iobench.core.order import multiset_sum, sample_order
from iobench.core.records import VALID, CacheProof, RankResult, Record, Steps
from iobench.equations import ssgd
from iobench.equations.ssgd import AllReduce, StepParts

SAMPLES, BATCH, COUNT = 1024, 4, 12
DATASET = Dataset("/d", "t", SAMPLES, SAMPLES * 10, 3, 1, "d" * 32, "test")
#: Seconds: a bucket of 1 MB is ready after 0.02, one of 3 MB after 0.06; the update takes 0.01.
PARTS = StepParts(io_s=0.03, forward_s=0.0, backward_s=(0.02, 0.04), update_s=0.01)
SIZES = (1e6, 3e6)
#: On two ranks.
EXCHANGE = AllReduce(0.001, 4e-9)


def case_of(ranks: int, *, nodes: int = 1, **changes: Any) -> Case:
    keys = {
        "label": f"torch:lmdb world_size={ranks} nodes={nodes}", "format": "lmdb",
        "trainer": "torch", "launcher": "mpirun", "batch": BATCH, "world_size": ranks,
        "nodes": nodes, "location": "/d", **changes,
    }  # fmt: skip
    return Case(**keys)


def comm_s(ranks: int) -> list[float]:
    """Return what the exchange of each bucket takes."""
    exchange = ssgd.ring(EXCHANGE, 2, ranks)
    return [exchange.seconds(size) for size in SIZES] if ranks > 1 else []


def steps_of(wait_s: float, compute_s: float, **columns: float) -> Steps:
    """Return equal steps of a wait and a computation."""
    whole = wait_s + compute_s
    begin = [i * whole for i in range(COUNT)]
    return Steps(
        begin, [t + wait_s for t in begin], [t + whole for t in begin], [BATCH] * COUNT,
        [10 * BATCH] * COUNT, 2, **{name: [value] * COUNT for name, value in columns.items()},
    )  # fmt: skip


def rank_of(case: Case, rank: int, steps: Steps, **changes: Any) -> RankResult:
    alone = changes.get("world_size") == 1
    ids = sample_order(
        SAMPLES, "shuffled", seed=0, rank=rank, world_size=case.world_size, batch=BATCH
    )
    several = case.world_size > 1 and not alone
    buckets = [
        {"bytes": size, "ready_s": ready, "comm_s": comm}
        for size, ready, comm in zip(SIZES, (0.02, 0.06), comm_s(case.world_size), strict=False)
    ]
    notes = {"trainer": {"comm_s": 0.01} if several else {}, "buckets": buckets if several else []}
    node = f"n{1 + rank // case.ranks_per_node}"
    result = RankResult(
        rank, case.world_size, node, 7 + rank, steps, ids_sum=multiset_sum(ids),
        fingerprint={"boot_id": node}, notes=notes,
    )  # fmt: skip
    return dataclasses.replace(result, **changes)


def record_of(trial: Trial, ranks: Sequence[RankResult]) -> Record:
    return Record(trial, 1, VALID, (), "2026-11-20T10:00:00", 1.0, CacheProof(), tuple(ranks))


def loaded(case: Case) -> Steps:
    """Return the steps of loading alone."""
    return steps_of(PARTS.io_s, 0.0)


def computed(case: Case) -> Steps:
    """Return the steps of computing together."""
    seconds = dataclasses.replace(PARTS, io_s=0.0).seconds(comm_s(case.world_size))
    apart = {"peers_s": 0.0, "exchange_s": seconds - PARTS.compute_s}
    return steps_of(0.0, seconds, **(apart if case.world_size > 1 else {}))


def trained(case: Case) -> Steps:
    """Return the steps of training."""
    seconds = PARTS.seconds(comm_s(case.world_size))
    apart = {"peers_s": 0.0, "exchange_s": seconds - PARTS.compute_s}
    return steps_of(0.001, seconds - 0.001, **(apart if case.world_size > 1 else {}))


def suite(
    cases: Sequence[Case],
    repeats: int = 2,
    changed: Mapping[tuple[str, int], Steps] | None = None,
) -> tuple[Plan, list[Record]]:
    """Return a plan and its records; ``changed``: (stage, rank) -> other steps than usual."""
    trials, records = [], []
    for case in cases:
        for stage, steps in (("load", loaded), ("compute", computed), ("train", trained)):
            for repeat in range(1, repeats + 1):
                cache = "-" if stage == "compute" else "warm"
                trial = Trial(f"{len(trials)}", case, stage, cache, block=repeat)
                ranks = [
                    rank_of(case, r, (changed or {}).get((stage, r), steps(case)))
                    for r in range(case.world_size)
                ]
                trials.append(trial)
                records.append(record_of(trial, ranks))
    return Plan("s", "now", 1, 60.0, DATASET, tuple(cases), tuple(trials), phase=2), records
