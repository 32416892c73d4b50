"""Does `iobench explain` name the cause?  Causes and strengths drawn at run time, and healthy runs.

Each run plants one cause in a small suite by what the product itself offers (a sleep in every
decode, settings of the case, a limit of its control group) or below it (a throttled mount, a few
huge pictures), and asks which cause is ranked first.  ``--causes`` are drawn, kinds in turn, and
``--healthy`` runs have none.  Target: 14 of 15 named, none in 5 healthy ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.suites import arguments, dataset, finish, run
from benchmarks.throttle import throttled
from iobench.core.cases import Dataset
from iobench.run.trial import TrialSettings

#: What every run has, unless its cause says otherwise: fed easily, on two cores.
CASE: dict[str, Any] = {
    "loader": "torch", "trainer": "emulated", "batch": 8, "workers": 2, "samples": 192,
    "transform": "rrc224",
}  # fmt: skip
STAGES = ["read", "decode", "load", "compute", "train"]
#: Seconds a step of eight samples that two workers of this machine feed with room to spare.
EASY_S = 0.08
FAST, SIDE = 2, 5000


@dataclasses.dataclass(frozen=True)
class Planted:
    """One thing done to a healthy run on purpose; ``names``: the causes that are right."""

    kind: str
    names: tuple[str, ...]
    strength: float
    case: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    step_s: float = EASY_S
    delay_s: float = 0.0
    read_bps: int = 0
    read_iops: int = 0
    huge: int = 0  # one picture in so many is huge
    forms: Sequence[str] = ("jpeg",)


def _delay(rng: random.Random) -> Planted:
    """Every decode sleeps: too few workers for what a sample costs."""
    strength, workers = rng.uniform(2, 5), rng.choice([1, 2])
    step_s = EASY_S
    delay = strength * workers * step_s / CASE["batch"]
    return Planted("delay", ("workers",), strength, {"workers": workers}, step_s, delay_s=delay)


def _alone(rng: random.Random) -> Planted:
    """Nobody prepares while a step runs."""
    strength = rng.uniform(1.4, 1.9)
    step_s, batch = rng.uniform(0.04, 0.08), CASE["batch"]
    delay = (strength - 1) * step_s / batch
    return Planted("no overlap", ("no-overlap",), strength, {"workers": 0}, step_s, delay_s=delay)


def _slow_storage(rng: random.Random) -> Planted:
    """A mount of fewer bytes/s than the steps need; pictures are of about 20 kB."""
    strength = rng.uniform(2, 5)
    needed = 20_000 * CASE["batch"] / EASY_S
    return Planted("slow storage", ("storage",), strength, read_bps=int(needed / strength))


def _many_files(rng: random.Random) -> Planted:
    """A mount of few requests a second under one small file a sample; LMDB beside it."""
    strength = rng.uniform(2, 5)
    iops = int(CASE["batch"] / EASY_S / strength * 1.3)
    names = ("files", "storage")
    return Planted("many files", names, strength, read_iops=max(iops, 20))


def _few_cores(rng: random.Random) -> Planted:
    """A control group with less CPU time than decoding takes."""
    strength = rng.uniform(2, 4)
    case = {"cpus": 1.0, "workers": 3}
    return Planted("few cores", ("cores",), strength, case, step_s=0.02 / strength)


def _slow_sample(rng: random.Random) -> Planted:
    """A few pictures take as long as a hundred others: batches behind theirs wait."""
    every = rng.choice([48, 64])
    return Planted("slow sample", ("slow-sample",), 100 / every, step_s=0.10, huge=every)


KINDS: tuple[Callable[[random.Random], Planted], ...] = (
    _delay, _alone, _slow_storage, _few_cores, _slow_sample, _many_files,
)  # fmt: skip


def healthy(rng: random.Random) -> Planted:
    """Nothing is planted."""
    return Planted("healthy", (), 0.0, {"workers": 2}, rng.uniform(EASY_S, 2 * EASY_S))


def drawn(seed: int, causes: int, healthies: int) -> list[Planted]:
    """Return so many runs with a cause, kinds in turn, and so many without, shuffled."""
    rng = random.Random(seed)
    runs = [KINDS[i % len(KINDS)](rng) for i in range(causes)]
    runs += [healthy(rng) for _ in range(healthies)]
    rng.shuffle(runs)
    return runs
