"""Cold pairs: arms one after the other, or in turns, each on a copy of its own?

Both arms are the same case, so that the true ratio of their times is 1.  Printed: sd and mean of
the pairs' log ratio, the wall time of a pair, two standard errors after ten minutes of pairs, and
how much longer than one after the other an arm reads (its own running time).
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import sys
import time
from collections.abc import Sequence

from benchmarks import suites
from benchmarks.slices import case_of, equal_pair
from iobench.core.cases import Case, Dataset, Trial
from iobench.run.trial import TrialSettings

PIPELINES = ("lmdb", "hdf5", "jpeg", "dali")
BUDGET_S, LIMIT_S = 600.0, 600.0


def main() -> int:
    parser = suites.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=1280)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--slices", nargs="+", type=float, default=[0.3, 1.0], help="seconds")
    parser.add_argument("--pipelines", nargs="+", default=list(PIPELINES), choices=PIPELINES)
    args = parser.parse_args()
    found = suites.dataset(
        args.data,
        "imagenet-like",
        args.samples,
        [p for p in args.pipelines if p in ("lmdb", "hdf5")],
    )
    draw, figures = random.Random(1), []
    for pipeline in args.pipelines:
        figures += compared(found, case_of(found, pipeline), args.slices, args.pairs, draw)
    return suites.finish(args, figures, True)


def compared(
    found: Dataset, case: Case, slices_s: Sequence[float], pairs: int, draw: random.Random
) -> list[dict[str, float | str]]:
    """Measure both ways, interleaved; print and return what each shows."""
    ways = (0.0, *slices_s)
    logs: dict[float, list[float]] = {s: [] for s in ways}
    times: dict[float, list[float]] = {s: [] for s in ways}
    walls = dict.fromkeys(ways, 0.0)
    settings = TrialSettings(limit_s=LIMIT_S)
    with contextlib.ExitStack() as undo:
        for _ in range(pairs):
            for slice_s in draw.sample(ways, len(ways)):
                begun = time.perf_counter()
                trial = Trial("t", case, "load", "cold", slice_s=slice_s)
                one, other = equal_pair(
                    found, trial, apart=slice_s > 0, settings=settings, undo=undo, draw=draw
                )
                walls[slice_s] += time.perf_counter() - begun
                logs[slice_s].append(math.log(one / other))
                times[slice_s] += [one, other]
    alone = statistics.median(times[0.0])
    figures: list[dict[str, float | str]] = []
    for slice_s in ways:
        sd, wall_s = statistics.stdev(logs[slice_s]), walls[slice_s] / pairs
        half = 2 * sd / math.sqrt(BUDGET_S / wall_s)
        longer = statistics.median(times[slice_s]) / alone - 1
        figures.append({"pipeline": case.label, "slice_s": slice_s, "sd": sd, "pair_s": wall_s,
                        "mean": statistics.fmean(logs[slice_s]), "half_width": half,
                        "longer": longer})  # fmt: skip
        words = f"slices of {slice_s:g} s" if slice_s else "one after the other"
        print(
            f"{case.label:5} {words:20} sd {sd:.2%}, mean {statistics.fmean(logs[slice_s]):+.2%}, "
            f"{wall_s:.1f} s a pair, ten minutes: +- {half:.2%}; {longer:+.1%} longer",
            flush=True,
        )
    return figures


if __name__ == "__main__":
    sys.exit(main())
