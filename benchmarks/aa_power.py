"""The verdict rule on simulated pairs: how often it is wrong, and what it can see.

    .venv/bin/python benchmarks/aa_power.py [--draws 2000] [--seed 1] [--json FILE]

Blocks of ABBA/BAAB run one after the other; log seconds per sample are noise around the truth.
Noise: normal, heavy-tailed (t with 3 degrees of freedom), and bursts (one run in eight takes 50 %
longer); each white or autocorrelated from run to run (AR(1), rho 0.6), as warm decode is here.
Printed for each: the share of A/A comparisons whose 95 % interval excludes 1 (nominal 5 %), the
interval's coverage at a true 5 % effect, the verdicts, and power; then the same for a family of
six under simultaneous intervals, counting a family as wrong when any member is.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
from pathlib import Path
from typing import Any, Callable

import numpy as np

from iobench import stats

EFFECT = 0.05
FAMILY = 6


def noise(kind: str, rho: float, runs: int, sd: float, rng: np.random.Generator) -> np.ndarray:
    """Return a series of log run times with marginal standard deviation ``sd``."""
    white: Callable[[int], np.ndarray] = {
        "normal": lambda n: rng.normal(0, 1, n),
        "heavy": lambda n: rng.standard_t(3, n) / math.sqrt(3),
        "bursts": lambda n: rng.normal(0, 1, n) + (rng.random(n) < 1 / 8) * math.log(1.5) / sd,
    }[kind]
    innovations = white(runs + 50) * math.sqrt(1 - rho**2)
    series = np.zeros(runs + 50)
    for i in range(1, runs + 50):
        series[i] = rho * series[i - 1] + innovations[i]
    return sd * series[50:]


def draw(
    kind: str, rho: float, pairs: int, sd: float, effect: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return (arm, base) seconds per sample of ``pairs`` blocks in ABBA/BAAB order."""
    runs = np.exp(noise(kind, rho, 2 * pairs, sd, rng)).reshape(pairs, 2)
    arm, base = np.empty(pairs), np.empty(pairs)
    first = True
    for i in range(pairs):
        first = rng.random() < 0.5 if i % 2 == 0 else not first
        arm[i], base[i] = runs[i] if first else runs[i][::-1]
    return arm * (1 + effect), base


def study(
    kind: str, rho: float, pairs: int, sd: float, draws: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Return the rates of one kind of noise."""
    verdicts: dict[str, collections.Counter[str]] = {
        "null": collections.Counter(), "effect": collections.Counter(),
    }  # fmt: skip
    excluded = covered = 0
    for _ in range(draws):
        null = stats.verdict(*map(list, draw(kind, rho, pairs, sd, 0.0, rng)))
        real = stats.verdict(*map(list, draw(kind, rho, pairs, sd, EFFECT, rng)))
        excluded += not null.interval.contains(1.0)
        covered += real.interval.contains(1 + EFFECT)
        verdicts["null"][null.verdict] += 1
        verdicts["effect"][real.verdict] += 1
    families = max(1, draws // FAMILY)
    wrong = sum(
        any(
            stats.verdict(*map(list, draw(kind, rho, pairs, sd, 0.0, rng)), family=FAMILY).verdict
            in (stats.FASTER, stats.SLOWER)
            for _ in range(FAMILY)
        )
        for _ in range(families)
    )
    return {
        "noise": kind, "rho": rho, "pairs": pairs, "sd": sd, "draws": draws,
        "false_positive": excluded / draws, "coverage": covered / draws,
        "null_verdicts": {k: v / draws for k, v in verdicts["null"].items()},
        "effect_verdicts": {k: v / draws for k, v in verdicts["effect"].items()},
        "power": verdicts["effect"][stats.SLOWER] / draws,
        "family_wrong": wrong / families, "families": families,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    print(f"{options.draws} comparisons a row; margin 3 %, effect {EFFECT:.0%}, family {FAMILY}")
    print(
        "noise    rho  pairs  sd     false+  coverage  null: FASTER+SLOWER EQUIV INCONCL   "
        "power   family wrong"
    )
    rows = []
    for kind in ("normal", "heavy", "bursts"):
        for rho in (0.0, 0.6):
            for pairs, sd in ((10, 0.01), (10, 0.03), (20, 0.03), (30, 0.10)):
                row = study(kind, rho, pairs, sd, options.draws, rng)
                rows.append(row)
                null = row["null_verdicts"]
                moved = null.get(stats.FASTER, 0) + null.get(stats.SLOWER, 0)
                print(
                    f"{kind:8} {rho:.1f}  {pairs:5}  {sd:.2f}   {row['false_positive']:6.1%}"
                    f"  {row['coverage']:8.1%}  {moved:19.1%} {null.get(stats.EQUIVALENT, 0):5.0%}"
                    f" {null.get(stats.INCONCLUSIVE, 0):7.0%}  {row['power']:6.1%}"
                    f"  {row['family_wrong']:8.1%} of {row['families']}",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    worst = max(r["false_positive"] for r in rows)
    print(f"worst false-positive rate {worst:.1%} (nominal 5 %, wanted at most 7.5 %)")


if __name__ == "__main__":
    main()
