"""Records of paired trials with stated seconds a sample, for what judges pairs: no process runs."""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Sequence, Tuple

from iobench.core.cases import Case, Contrast, Dataset, Plan, Trial
from iobench.core.records import VALID, CacheProof, IoCounters, RankResult, Record, Startup, Steps
from iobench.plan import blocks

DATASET = Dataset("/d", "t", 32, 0, 1, 1, "d" * 32, "test")
FINGERPRINT: Mapping[str, Any] = {
    "host": "node17", "boot_id": "b1", "libc": "glibc 2.36", "libraries": {"torch": "2.13.0"},
    "mount": {"fstype": "ext4", "device": "8:1", "options": "relatime,rw", "super_options": "rw"},
    "limits": {"memory_bytes": None, "cpus": None, "open_files": 1024},
}  # fmt: skip


def steps(seconds: float, samples: int = 16) -> Steps:
    """Return a loop whose every sample takes ``seconds``."""
    done = [seconds * (i + 1) for i in range(samples)]
    start = [seconds * i for i in range(samples)]
    return Steps(start, [t + 0.9 * seconds for t in start], done, [1] * samples, [1] * samples, 1)


def record(
    trial: Trial,
    seconds: float = 1e-3,
    *,
    status: str = VALID,
    ready_s: float = 0.0,
    probe: Optional[Mapping[str, float]] = None,
    fingerprint: Mapping[str, Any] = FINGERPRINT,
) -> Record:
    """Return the record of a trial; a probe has the parts given, in seconds a sample."""
    given = (probe or {}) if trial.stage == "probe" else {}
    counted = {"samples": 4, "counts": {"openat": 4, "pread64": 8}, "reason": ""}
    parts = {part: [value] * 4 for part, value in given.items()}
    rank = RankResult(
        rank=0, world_size=1, host="node17", pid=1,
        steps=Steps((), (), (), (), ()) if trial.stage in ("probe", "calls") else steps(seconds),
        startup=Startup(), io=IoCounters(wall_s=1.0), ids_digest="a", order_digest="b",
        fingerprint=fingerprint, probe=parts,
    )  # fmt: skip
    return Record(
        trial, 1, status, () if status == VALID else ("by the test",), "2026-11-20T10:00:00", 1.0,
        CacheProof(), ranks=(rank,), ready_s=ready_s,
        notes={"calls": counted} if trial.stage == "calls" else {},
    )  # fmt: skip


def cases(*runtimes: str, loader: str = "torch") -> Tuple[Case, ...]:
    """Return one pipeline in several runtimes."""
    return tuple(
        Case(label=f"{loader}:lmdb runtime={name}", loader=loader, format="lmdb", runtime=name)
        for name in runtimes
    )


def contrast(arm: Case, base: Case, **changes: Any) -> Contrast:
    """Return a contrast of two cases over ten pairs."""
    made = Contrast("c01", arm.label, base.label, "load", "cold", probes=8)
    return dataclasses.replace(made, **changes)


def plan(
    found: Sequence[Case], contrasts: Sequence[Contrast], *, upto: int = 0, probes: bool = False
) -> Plan:
    """Return a plan in phase 2 with the blocks up to ``upto`` (0: the last one) and the probes."""
    groups = blocks.groups(contrasts)
    spans = {g: (0, upto or c[0].pairs) for g, c in groups.items()}
    trials = blocks.blocks(contrasts, found, seed=1, start=1, spans=spans)
    for together in groups.values() if probes else ():
        trials += blocks.probe_blocks(together, found, seed=1, start=len(trials) + 1, samples=64)
    return Plan("t", "now", 1, 60.0, DATASET, tuple(found), tuple(trials), tuple(contrasts), 2)
