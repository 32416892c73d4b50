"""How far two equal arms that take turns differ, by the length of their loops: the variance budget.

Two arms that do the same run for --seconds each, in turns.  Printed: the sd of the log ratio of
their rates over stretches of half a second to eight, and how much of the cores an arm used in its
slices: the rest is time in which its processes waited for each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import suites
from benchmarks.fidelity import epochs_of
from benchmarks.slices import PIPELINES, arms_of, case_of
from iobench.analysis import ranks
from iobench.core.cases import Dataset
from iobench.core.records import Slices
from iobench.host.agent import LOCAL
from iobench.run.block import end, opened, rounds

STRETCHES_S = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
#: Left out at both ends: queues fill and run empty.
MARGIN_S, FEWEST = 1.0, 5


def idle_s() -> float:
    """Return the seconds that all cores together were idle since the machine's start."""
    first = Path("/proc/stat").read_text().split(maxsplit=6)
    return (int(first[4]) + int(first[5])) / 100


def sd_by_stretch(done_s: Sequence[np.ndarray]) -> dict[float, float]:
    """Return stretch in seconds -> sd of the log ratio of the arms' rates over it.

    ``done_s``: of either arm, when each step ended, on a clock that stood still while it did.
    """
    begin = max(d[0] for d in done_s) + MARGIN_S
    length = min(d[-1] for d in done_s) - MARGIN_S - begin
    found = {}
    for stretch in STRETCHES_S:
        count = int(length / stretch)
        if count < FEWEST:
            continue
        edges = begin + stretch * np.arange(count + 1)
        logs = [np.log(np.diff(np.interp(edges, d, np.arange(len(d))))) for d in done_s]
        found[stretch] = float(np.std(logs[0] - logs[1], ddof=1))
    return found


def noise(found: Dataset, pipeline: str, batch: int, slice_s: float, seconds: float) -> Any:
    """Return the noise of two equal arms of one pipeline."""
    case = dataclasses.replace(case_of(found, pipeline), batch=batch)
    with contextlib.ExitStack() as stack:
        arms = opened(arms_of(found, case, epochs_of(case, found, seconds))[:2], LOCAL, stack)
        idle = -idle_s()
        rounds(arms, slice_s, random.Random(f"{pipeline}-{batch}-{slice_s}"))
        idle += idle_s()
        end(arms)
    done_s = []
    for arm in arms:
        slices = Slices(arm.thawed, arm.stop_s, arm.thaw_s)
        (running,) = ranks.running(arm.attempt.ranks, slices)
        done_s.append(np.asarray(running.steps.done_s)[running.steps.warmup :])
    ran = sum(end - begun for arm in arms for begun, end in arm.thawed)
    return {
        "pipeline": pipeline,
        "batch": batch,
        "slice_s": slice_s,
        "sd": sd_by_stretch(done_s),
        "idle_cores": idle / ran,
        "steps_per_s": len(done_s[0]) / done_s[0][-1],
    }


def main() -> int:
    parser = suites.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--pipelines", nargs="*", default=list(PIPELINES))
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 16])
    parser.add_argument("--slices", nargs="+", type=float, default=[0.1], help="seconds")
    parser.add_argument("--seconds", type=float, default=40.0, help="an arm's loop")
    args = parser.parse_args()
    forms = [p for p in args.pipelines if p in ("lmdb", "hdf5")]
    found = suites.dataset(args.data, "imagenet-like", 1280, forms)
    figures = []
    for pipeline in args.pipelines:
        for batch in args.batches:
            for slice_s in args.slices:
                row = noise(found, pipeline, batch, slice_s, args.seconds)
                figures.append(row)
                sds = ", ".join(f"{s:g} s {sd:.2%}" for s, sd in row["sd"].items())
                print(
                    f"{pipeline:5} batch {batch:3} slices {slice_s:g} s: {sds}; "
                    f"{row['idle_cores']:.2f} cores idle",
                    flush=True,
                )
    return suites.finish(args, figures, True)


if __name__ == "__main__":
    sys.exit(main())
