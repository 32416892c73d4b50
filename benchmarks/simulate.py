"""Comparisons drawn from noise: recorded blocks, or synthetic runs with outliers and drift.

A comparison is a series of blocks, log times of their two runs in the order they were started, to
which the arms are put in the orders that the product draws; it is judged by the product's own rule
look by look.  Recorded noise is resampled in stretches of consecutive blocks, so that drift, bursts
and outliers stay as they were; nothing is trimmed.
"""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from iobench.equations import sequential as looking
from iobench.equations import stats
from iobench.plan import blocks

LOOKS = (10, 20, 30)
MARGIN = 0.03
#: Consecutive pairs that are resampled together.
STRETCH = 5
MOVED = (stats.FASTER, stats.SLOWER)


def judge(logs: np.ndarray, looks: Sequence[int] = LOOKS, most: int = 0) -> stats.Verdict:
    """Judge paired log ratios (arm - base) by looks at so many pairs; ``most`` were planned."""
    arm, base = np.exp(logs), np.ones(len(logs))
    at = [(list(arm[:n]), list(base[:n])) for n in looks if n <= len(logs)]
    return looking.judge(at, tuple(looks), margin=MARGIN, most=most).verdict


def pair_up(runs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the log ratios of consecutive runs, whose arms stand in the orders of the product."""
    pairs = runs.reshape(-1, 2)
    return signed(pairs[:, 0] - pairs[:, 1], rng)


def signed(differences: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return arm - base of first - second of each block, by the orders that the product draws."""
    draw = random.Random(int(rng.integers(1 << 62)))
    orders = blocks._orders(("arm", "base"), len(differences), draw)
    ratios: np.ndarray = differences * [1 if order[0] == "arm" else -1 for order in orders]
    return ratios


def stretches(
    series: Sequence[np.ndarray], wanted: int, length: int, rng: np.random.Generator
) -> np.ndarray:
    """Return ``wanted`` entries: stretches of ``length`` consecutive ones, each of one series."""
    usable = [s for s in series if len(s) >= length]
    if not usable:
        raise ValueError(f"no recorded series of {length} entries")
    weights = np.array([len(s) for s in usable], dtype=float)
    parts = []
    for _ in range(math.ceil(wanted / length)):
        chosen = usable[rng.choice(len(usable), p=weights / weights.sum())]
        start = rng.integers(0, len(chosen) - length + 1)
        parts.append(chosen[start : start + length])
    return np.concatenate(parts)[:wanted]


def synthetic(kind: str, rho: float, runs: int, sd: float, rng: np.random.Generator) -> np.ndarray:
    """Return a series of log run times with marginal standard deviation ``sd``.

    ``normal``; ``heavy``: t with 3 degrees of freedom; ``bursts``: one run in eight takes 50 %
    longer; ``drift``: 10 % slower from the first run to the last.  ``rho``: AR(1) from run to run.
    """
    white: dict[str, Callable[[int], np.ndarray]] = {
        "normal": lambda n: rng.normal(0, 1, n),
        "heavy": lambda n: rng.standard_t(3, n) / math.sqrt(3),
        "bursts": lambda n: rng.normal(0, 1, n) + (rng.random(n) < 1 / 8) * math.log(1.5) / sd,
        "drift": lambda n: rng.normal(0, 1, n),
    }
    innovations = white[kind](runs + 50) * math.sqrt(1 - rho**2)
    series = np.zeros(runs + 50)
    for i in range(1, runs + 50):
        series[i] = rho * series[i - 1] + innovations[i]
    trend = np.linspace(0, math.log(1.1), runs) if kind == "drift" else 0.0
    out: np.ndarray = sd * series[50:] + trend
    return out


def verdicts(
    draw: Callable[[], np.ndarray], draws: int, looks: Sequence[int] = LOOKS, most: int = 0
) -> dict[str, Any]:
    """Judge ``draws`` comparisons of log ratios; return the share of each verdict, and of looks.

    ``excluded``: the share whose interval at its look's level excludes 1, which an EQUIVALENT one
    may too.
    """
    found: collections.Counter[str] = collections.Counter()
    pairs: collections.Counter[int] = collections.Counter()
    excluded = 0
    for _ in range(draws):
        verdict = judge(draw(), looks, most)
        found[verdict.verdict] += 1
        pairs[verdict.pairs] += 1
        excluded += verdict.simultaneous.low > 1 or verdict.simultaneous.high < 1
    return {
        "draws": draws,
        "verdicts": {k: v / draws for k, v in sorted(found.items())},
        "moved": sum(found[k] for k in MOVED) / draws,
        "excluded": excluded / draws,
        "mean_pairs": sum(n * k for n, k in pairs.items()) / draws,
    }
