"""A suite in memory: a plan and its records, computed by a small queue model with a fake clock.

Four pipelines and a net on an imaginary node: one is bound by its storage, one by preparing, two
by the emulated accelerator.  Noise is drawn from a seed, so the numbers are the same every time.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any, Dict, List, Optional, Sequence, Tuple

from iobench.analysis.case_results import CaseResult
from iobench.analysis.cases import describe
from iobench.analysis.evidence import Evidence
from iobench.core.cases import Case, Contrast, Dataset, Plan, Trial
from iobench.core.records import (
    EXPLORATORY,
    FAILED,
    INVALID,
    VALID,
    CacheProof,
    IoCounters,
    RankResult,
    Record,
    Startup,
    Steps,
)
from iobench.worker import loop

SAMPLES, BATCH, WORKERS, PREFETCH, REPEATS, PAIRS = 1280, 64, 2, 2, 3, 10
STEPS = SAMPLES // BATCH
STEP_S = 0.195
SIZE = 110_000
QUEUE = WORKERS * PREFETCH

DATASET = Dataset(
    root="/scratch/imagenet-like", name="imagenet-like", samples=SAMPLES, bytes=SAMPLES * SIZE,
    classes=10, seed=1, digest="d" * 32, source="imagenet-like",
)  # fmt: skip

#: Samples/s of two workers: fio, read cold, read warm, decode, load warm.
RATES: Dict[str, Tuple[float, float, float, float, float]] = {
    "torch:lmdb": (2600, 1500, 9000, 1300, 780),
    "torch:hdf5": (2400, 900, 5200, 310, 262),
    "torch:jpeg": (262, 240, 8800, 1290, 774),
    "dali:jpeg": (262, 248, 9100, 1900, 955),
}
FINGERPRINT = {
    "host": "node17", "python": "3.11.7", "kernel": "6.8.0", "libc": "glibc 2.36",
    "libraries": {"torch": "2.13.0", "numpy": "2.4.6", "lmdb": "1.6.2"},
    "cpu": {"count": 2, "model": "AMD EPYC 7543"}, "affinity": [0, 1],
    "limits": {"memory_bytes": 24 * 2**30, "cpus": None}, "dev_shm_bytes": 12 * 2**30,
    "thp": "madvise", "mount": {"fstype": "ext4", "options": "relatime,rw"},
}  # fmt: skip


def case(pipeline: str, **changes: object) -> Case:
    loader, _, form = pipeline.partition(":")
    made = Case(
        label=pipeline, loader=loader, format=form, location=DATASET.root, batch=BATCH,
        workers=WORKERS, prefetch=PREFETCH, samples=SAMPLES, seed=1,
        trainer_options={"accelerator": "v100"},
    )  # fmt: skip
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


CASES = tuple(case(p) for p in RATES)
NET = case(
    "torch:jpeg", label="torch:jpeg trainer=torch", trainer="torch",
    trainer_options={"net": "resnet18"},
)  # fmt: skip
BASE = "torch:lmdb"


def run_queue(batch_s: float, step_s: float, *, steps: int = STEPS, warmup: int = 0,
              noise: Optional[random.Random] = None) -> Steps:  # fmt: skip
    """Return the clock readings of a loop fed by WORKERS workers, each batch_s * WORKERS a batch.

    A worker starts a batch when its last one is done and fewer than QUEUE batches wait.
    """
    free = [0.0] * WORKERS
    request, ready, done = [], [], []
    now = 0.0
    finished: List[float] = []
    for step in range(steps):
        worker = step % WORKERS
        slot = request[step - QUEUE] if step >= QUEUE else 0.0
        jitter = noise.lognormvariate(0.0, 0.06) if noise else 1.0
        free[worker] = max(free[worker], slot) + batch_s * WORKERS * jitter
        finished.append(free[worker])
        request.append(now)
        ready.append(max(now + 2e-4, finished[step]))
        now = ready[-1] + step_s
        done.append(now)
    return Steps(request, ready, done, [BATCH] * steps, [BATCH * SIZE] * steps, warmup)


def planned() -> Tuple[List[Trial], List[Contrast]]:
    """Return every trial and contrast of the suite."""
    trials, contrasts = _ladder(), []
    for cache in ("warm", "cold"):
        for one in CASES:
            if one.label != BASE:
                name = f"c{len(contrasts) + 1:02d}"
                contrasts.append(Contrast(name, one.label, BASE, "load", cache))
    labels = {c.label: c for c in CASES}
    for contrast in contrasts:
        for block in range(1, PAIRS + 1):
            order = [contrast.arm, contrast.base][:: 1 if block % 4 in (0, 1) else -1]
            trials += [_arm(contrast, labels[a], block, i) for i, a in enumerate(order)]
    first = contrasts[0]
    for i, arm in enumerate((first.arm, first.base)):
        trials.append(_arm(first, labels[arm], PAIRS + 1, i, repeat_of="3"))
    return [dataclasses.replace(t, id=_name(i, t)) for i, t in enumerate(trials, 1)], contrasts


def _ladder() -> List[Trial]:
    trials: List[Trial] = []
    for one in CASES:
        rungs = [
            *(("ceiling", "cold"), ("read", "cold"), ("read", "warm"), ("decode", "warm")),
            *(("load", "cold"), ("load", "warm"), ("train", "cold"), ("train", "warm")),
        ]
        if one.loader == "dali":
            rungs.remove(("decode", "warm"))
        if one.label == BASE:
            rungs.append(("compute", "-"))  # one compute rung serves all that share the trainer
        for block in range(1, REPEATS + 1):
            trials += [Trial("", one, stage, cache, block=block) for stage, cache in rungs]
        trials += [Trial("", one, "digest", "-"), Trial("", one, "probe", "warm")]
    return trials + [Trial("", NET, "compute", "-", block=b) for b in range(1, REPEATS + 1)]


def _arm(contrast: Contrast, one: Case, block: int, position: int, repeat_of: str = "") -> Trial:
    return Trial("", one, contrast.stage, contrast.cache, contrast.id, one.label, block, position,
                 repeat_of)  # fmt: skip


def _name(number: int, trial: Trial) -> str:
    words = [trial.contrast or "ladder", trial.stage, trial.cache, trial.case.pipeline]
    return f"{number:04d}-" + "-".join(words).replace(":", "-").replace("--", "-")


def steps_of(trial: Trial, rng: random.Random) -> Steps:
    """Return what the loop would have seen in this trial."""
    if trial.stage in ("digest", "probe", "ceiling"):
        return Steps([], [], [], [], [])
    if trial.stage == "compute":
        step_s = STEP_S if trial.case.trainer == "emulated" else 2.3 * rng.gauss(1, 0.01)
        done = [(i + 1) * step_s for i in range(30)]
        start = [i * step_s for i in range(30)]
        return Steps(start, start, done, [BATCH] * 30, [BATCH * SIZE] * 30, 1)
    _, cold, warm, decode, load = RATES[trial.case.label]
    rate = {"read": warm, "decode": decode, "load": load, "train": load}[trial.stage]
    noise = rng.gauss(1.0, 0.006)
    if trial.cache == "cold":
        rate = min(rate, cold)
        noise *= rng.lognormvariate(0.0, 0.02 if rate < 300 else 0.12)
    step_s = STEP_S * 1.004 if trial.stage == "train" else 0.0
    warmup = loop.warmup_steps(queue_batches=QUEUE, workers=WORKERS, steps=STEPS)
    return run_queue(BATCH / rate * noise, step_s, warmup=warmup, noise=rng)


def record(trial: Trial, rng: random.Random, *, attempt: int = 1, status: str = VALID,
           reasons: Sequence[str] = ()) -> Record:  # fmt: skip
    """Return the stored record of one attempt."""
    steps = steps_of(trial, rng)
    needed = sum(steps.bytes) if trial.stage != "compute" else 0
    cold = trial.cache == "cold"
    if trial.stage == "ceiling":
        needed = SAMPLES * SIZE
    storage = int(needed * (1.09 if trial.case.format == "lmdb" else 1.01)) if cold else 0
    wall = steps.done_s[-1] if steps.done_s else 1.0
    rank = RankResult(
        rank=0, world_size=1, host="node17", pid=4000 + rng.randrange(9000), steps=steps,
        startup=Startup(1.2, 0.05, steps.ready_s[0] if steps.ready_s else 0.0, 1.4),
        io=IoCounters(rchar=needed, read_bytes=storage, wall_s=wall, machine_busy_s=wall),
        ids_digest="a" * 16, order_digest="b" * 16,
        samples_digest=DATASET.digest if trial.stage == "digest" else "",
        bytes_needed=needed, fingerprint=FINGERPRINT,
        notes={"trainer": {"kind": "emulated", "step_s": STEP_S}},
        probe=_probe(trial, rng) if trial.stage == "probe" else {},
    )  # fmt: skip
    files = trial.cache != "-"
    proof = CacheProof(
        label={"cold": "data-cold", "warm": "warm"}.get(trial.cache, ""), method="cachestat",
        resident_before=0.0 if cold else 1.0, resident_after=1.0, bytes_needed=needed,
        bytes_read=needed, bytes_storage=storage, counter="read_bytes of /proc/self/io",
    )  # fmt: skip
    rate = RATES.get(trial.case.label, (1.0,))[0] * rng.gauss(1.0, 0.01)
    fio = {
        "bytes_per_s": rate * SIZE,
        "samples_per_s": rate,
        "samples": SAMPLES,
        "runtime_s": SAMPLES / rate,
    }
    return Record(
        trial=trial, attempt=attempt, status=status, reasons=tuple(reasons),
        started="2026-11-20T10:00:00.000+00:00", wall_s=wall + 2.4,
        cache=proof if files else CacheProof(), ranks=() if status == FAILED else (rank,),
        ceiling=fio if trial.stage == "ceiling" else {},
        mount={"filesystem": "posix", "fstype": "ext4", "mount_point": "/scratch"},
    )  # fmt: skip


def _probe(trial: Trial, rng: random.Random) -> Dict[str, List[float]]:
    parts = {"read_s": 2e-5, "decode_s": 9.5e-4, "transform_s": 1.1e-3}
    return {k: [v * rng.lognormvariate(0.0, 0.3) for _ in range(64)] for k, v in parts.items()}


def suite() -> Tuple[Plan, List[Record]]:
    """Return the whole suite: one failed attempt that was repeated, one INVALID trial."""
    trials, contrasts = planned()
    plan = Plan(
        name="bench-io", created="2026-11-20T10:00:00+00:00", seed=1, budget_s=900.0,
        dataset=DATASET, cases=(*CASES, NET), trials=tuple(trials), contrasts=tuple(contrasts),
        phase=2, version="0.1.0",
    )  # fmt: skip
    rng = random.Random(11)
    records = []
    for number, trial in enumerate(trials):
        if number == 12:
            killed = ("worker killed by SIGKILL (out of memory?)",)
            records.append(record(trial, rng, status=FAILED, reasons=killed))
            records.append(record(trial, rng, attempt=2))
        elif number == 20:
            why = ("not cold: 3.10% of the pages were resident before (at most 0.1%)",)
            records.append(record(trial, rng, status=INVALID, reasons=why))
        else:
            records.append(record(trial, rng))
    return plan, records


def exploratory(records: Sequence[Record]) -> List[Record]:
    """Return the records as of a mount where nothing counts bytes."""
    return [
        dataclasses.replace(
            r, status=EXPLORATORY, reasons=("nothing here counts this mount's bytes",),
            cache=dataclasses.replace(r.cache, bytes_storage=None, counter=""),
        )
        for r in records
    ]  # fmt: skip


def case_result(**changes: Any) -> CaseResult:
    """Return the result of a case of which nothing was measured, with these changes."""
    plan = dataclasses.replace(suite()[0], trials=())
    return dataclasses.replace(describe(Evidence(plan, {}), CASES[0]), **changes)
