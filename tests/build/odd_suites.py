"""Suites whose facts are missing, zero, contradictory or extreme, drawn by Hypothesis."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Tuple

from hypothesis import strategies as st

from iobench.core.cases import Case, Contrast, Plan, Trial
from iobench.core.records import (
    EXPLORATORY,
    FAILED,
    INVALID,
    VALID,
    CacheProof,
    IoCounters,
    NodeRecord,
    RankResult,
    Record,
    Startup,
    Steps,
)
from tests.build import pairs

BATCH = 4
Draw = Any
DAEMON = "the daemon of fuse.glusterfs at /data"
RUNGS = (
    ("ceiling", "cold"), ("read", "cold"), ("read", "warm"), ("decode", "warm"), ("load", "cold"),
    ("load", "warm"), ("train", "cold"), ("train", "warm"), ("compute", "-"),
)  # fmt: skip
#: Seconds a step: from a clock's tick to hours; most are ordinary.
SECONDS = st.sampled_from([1e-3, 1.1e-3, 2e-3, 0.01, 0.0101, 0.5]) | st.floats(1e-7, 1e4)
STATUSES = st.sampled_from([VALID] * 6 + [EXPLORATORY, INVALID, FAILED])
SHARES = st.none() | st.sampled_from([0.0, 0.0004, 0.00101, 0.5, 0.99899, 1.0])
#: (job, its nodes); most blocks are of no job.
PLACES = st.sampled_from(
    [("", ())] * 4 + [("7", ("n1", "n2")), ("7", ("n1", "n3")), ("9", ("n1",))]
)  # fmt: skip
FINGERPRINTS = st.sampled_from(
    [pairs.FINGERPRINT, pairs.FINGERPRINT, {}, {"host": None, "limits": {"cpus": 2.0}}]
)


class Odd:
    """A drawn suite."""

    def __init__(self, plan: Plan, records: List[Record]) -> None:
        self.plan, self.records = plan, records

    def __repr__(self) -> str:
        stages = sorted({f"{t.stage} {t.cache}" for t in self.plan.trials})
        return f"<{len(self.records)} records of {', '.join(stages)}>"


def _steps(draw: Draw, seconds: float, waits: float) -> Steps:
    count = draw(st.sampled_from([0, 1, 6, 6, 6]))
    begun = [i * seconds for i in range(count)]
    ready = [t + waits * seconds for t in begun]
    done = [(i + 1) * seconds for i in range(count)]
    warmup = draw(st.sampled_from([0, 1, 1, 6]))
    return Steps(begun, ready, done, [BATCH] * count, [BATCH * 1000] * count, warmup)


def _proof(draw: Draw, trial: Trial) -> CacheProof:
    if trial.cache == "-":
        return CacheProof()
    needed = draw(st.sampled_from([0, 24_000]))
    return CacheProof(
        label={"cold": "data-cold"}.get(trial.cache, trial.cache),
        method="cachestat", resident_before=draw(SHARES), resident_after=draw(SHARES),
        bytes_needed=needed, bytes_read=draw(st.sampled_from([0, needed])),
        bytes_storage=draw(st.sampled_from([None, 0, needed, 10 * needed])),
        counter="read_bytes of /proc/self/io", unseen=draw(st.sampled_from(["", "", DAEMON])),
    )  # fmt: skip


def _rank(draw: Draw, trial: Trial, number: int, seconds: float) -> RankResult:
    case, notes = trial.case, {}  # type: Case, Dict[str, Any]
    if case.trainer == "caffe" and trial.stage in ("compute", "train") and case.world_size > 1:
        notes["trainer"] = {"comm_s": draw(st.sampled_from([0.0, 1e-4, 0.02]))}
    parts: Dict[str, List[float]] = {}
    if trial.stage == "probe":
        names = draw(st.lists(st.sampled_from(["read_s", "decode_s", "transform_s"]), unique=True))
        parts = {name: draw(st.sampled_from([[], [0.0], [1e-3, 2e-3]])) for name in names}
    traced = trial.stage in ("probe", "ceiling", "calls")
    steps = _steps(draw, seconds, draw(st.floats(0.0, 1.0)))
    return RankResult(
        rank=number, world_size=case.world_size, host="node17", pid=1,
        steps=Steps((), (), (), (), ()) if traced else steps,
        startup=Startup(process_s=1.0), io=IoCounters(wall_s=draw(st.sampled_from([0.0, 1.0]))),
        ids_digest="a", order_digest=draw(st.sampled_from(["b"] * 9 + ["", "c"])),
        ids_sum=draw(st.sampled_from(["", "a" * 32])),
        fingerprint=draw(FINGERPRINTS), probe=parts, notes=notes,
    )  # fmt: skip


def _record(draw: Draw, trial: Trial, seconds: float) -> Record:
    status = draw(STATUSES)
    world = 1 if trial.stage == "alone" else trial.case.world_size
    ranks = [_rank(draw, trial, n, seconds) for n in range(world)] if status != FAILED else []
    fio: Dict[str, Any] = {}
    if trial.stage == "ceiling" and draw(st.booleans()):
        fio = {"samples_per_s": 1 / seconds, "bytes_per_s": 1000 / seconds, "samples": 8}
    return Record(
        trial, 1, status, () if status == VALID else ("by the test",), "2026-11-20T10:00:00", 1.0,
        _proof(draw, trial), ranks=tuple(ranks), ceiling=fio,
        mount=draw(st.sampled_from([{}, {"fstype": "ext4", "mount_point": "/", "loop": None}])),
        runtime=draw(st.sampled_from([{}, {"image": "torch", "version": None}])),
        ready_s=draw(st.sampled_from([0.0, 0.9, 1.0])),
    )  # fmt: skip


def _ladder(cases: Tuple[Case, ...], repeats: int, rungs: List[Tuple[str, str]]) -> List[Trial]:
    trials = []
    for case in cases:
        here = [*rungs, ("alone", "-")] if case.world_size > 1 else rungs
        trials += [Trial("", case, *rung, block=b + 1) for rung in here for b in range(repeats)]
        trials += [Trial("", case, "probe", "warm"), Trial("", case, "digest", "-")]
    return trials


@st.composite
def suites(draw: Draw) -> Odd:
    """Draw a plan of two cases and one contrast, and what its trials left."""
    trainer, ranks = draw(st.sampled_from(["emulated", "caffe"])), draw(st.sampled_from([1, 1, 2]))
    common: Dict[str, Any] = {"trainer": trainer, "world_size": ranks, "batch": BATCH}
    one, two = (
        Case(label=f"{form} a", format=form, workers=draw(st.sampled_from([0, 1, 2])), **common)
        for form in ("jpeg", "lmdb")
    )
    if draw(st.booleans()):
        two = dataclasses.replace(one, label="jpeg runtime=docker", runtime="docker")
        one = dataclasses.replace(one, label="jpeg runtime=bare")
    n, stage = draw(st.sampled_from([0, 3, 8, 12])), draw(st.sampled_from(["load", "train"]))
    cache = draw(st.sampled_from(["warm", "cold"]))
    contrast = Contrast(
        "c01", two.label, one.label, stage, cache, pairs=max(n, 1),
        margin=draw(st.sampled_from([0.0004, 0.03, 0.2])),
    )  # fmt: skip
    rungs = draw(st.lists(st.sampled_from(RUNGS), unique=True, min_size=1))
    trials = _ladder((one, two), draw(st.sampled_from([1, 2, 3])), rungs)
    trials += [
        Trial("", case, stage, contrast.cache, "c01", case.label, block)
        for block in range(1, n + 1)
        for case in (one, two)
    ]
    trials = [dataclasses.replace(t, id=f"{i:04d}") for i, t in enumerate(trials)]
    plan = Plan(
        "odd", "now", 1, 60.0, pairs.DATASET, (one, two), tuple(trials), (contrast,),
        draw(st.sampled_from([1, 2])), version="0.1.0",
    )  # fmt: skip
    rates = {(t.case.label, t.stage, t.cache): draw(SECONDS) for t in trials if not t.contrast}
    base, ratio = draw(SECONDS), draw(st.sampled_from([0.2, 0.9996, 1.0, 1.0003, 1.004, 1.5]))
    noise = draw(st.sampled_from([0.0, 1e-5, 0.1]))
    records = []
    places = {block: draw(PLACES) for block in range(1, n + 1)}
    for trial in trials:
        if draw(st.integers(0, 19)) == 0:
            continue  # it has not run
        seconds = rates.get((trial.case.label, trial.stage, trial.cache), 0.0)
        if trial.contrast:
            seconds = base * (ratio if trial.arm == two.label else 1.0)
        wave = 1 + noise * ((trial.block * 7919) % 11 - 5) / 5
        found = _record(draw, trial, seconds * wave)
        if trial.contrast:
            job, names = places[trial.block]
            rows = tuple(NodeRecord(name, (0,), CacheProof()) for name in names)
            found = dataclasses.replace(found, job=job, nodes=rows)
        records.append(found)
    return Odd(plan, records)
