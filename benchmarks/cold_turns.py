"""Cold pairs: arms one after the other, or in turns on disjoint halves of the data?

Both arms are the same hand-written loop, so that the true ratio of their times is 1.  One after the
other: each reads the whole evicted dataset.  In turns: one reads the first half while the other,
stopped for every second slice, reads the second; then crossed over on halves that are evicted
again.  Either way a unit has each arm read every sample once.  Printed: sd and mean of the units'
log ratio, the wall time of a unit, and two standard errors after ten minutes of units.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import by_hand, suites
from iobench.analysis import windows
from iobench.core import dataset as datasets
from iobench.core.cases import Case, Dataset
from iobench.core.records import Slices
from iobench.host import page_cache
from iobench.host.freezer import Freezer, family, freezer

FORMATS = ("lmdb", "jpeg")
BATCH, COLD = 64, 0.02
BUDGET_S, LIMIT_S = 600.0, 600.0


@dataclasses.dataclass
class Arm:
    """One loop over some samples, and when it ran."""

    worker: Any
    freezer: Freezer
    processes: list[int] = dataclasses.field(default_factory=list)
    thawed: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    done: bool = False

    def open(self) -> None:
        self.worker.wait_ready()
        self.worker.release()
        self.worker.arrived(math.inf)
        self.processes = family(self.worker.processes())
        self.freezer.watch(self.processes)
        self.freezer.stop(self.processes)
        self.worker.begin()

    def turn(self, slice_s: float) -> None:
        begun, _ = self.freezer.go(self.processes)
        self.done = self.worker.arrived(begun + slice_s)
        sent, _ = self.freezer.stop(self.processes)
        self.thawed.append((begun, sent))

    def seconds(self) -> float:
        """End it; return the running time of its steps after the warm-up."""
        self.freezer.go(self.processes)
        self.worker.begin()
        (result,) = self.worker.results()
        zeros = [0.0] * len(self.thawed)
        steps = windows.thawed(result.steps, result.began_s, Slices(self.thawed, zeros, zeros))
        return windows.window(steps).wall_s


class Halves:
    """A dataset in one stored form, read by hand-written loops."""

    def __init__(self, found: Dataset, form: str) -> None:
        self.case = Case(
            label=form, loader="torch", format=form, trainer="null", location=found.root,
            batch=BATCH, workers=2,
        )  # fmt: skip
        self.found = found
        self.files = datasets.files_of(self.case, found)

    def run(
        self, parts: Sequence[Sequence[int]], slice_s: float, draw: random.Random
    ) -> list[float]:
        """Evict the data, read each part by an arm, in turns; return the seconds of each."""
        self.evict()
        with contextlib.ExitStack() as stack:
            holder = stack.enter_context(freezer())
            arms = [self.opened(part, holder, stack) for part in parts]
            left = list(arms)
            while left:
                for arm in draw.sample(left, len(left)):
                    arm.turn(slice_s)
                left = [arm for arm in left if not arm.done]
            return [arm.seconds() for arm in arms]

    def opened(self, ids: Sequence[int], holder: Freezer, stack: contextlib.ExitStack) -> Arm:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="iobench-")))
        arm = Arm(
            stack.enter_context(by_hand.started(self.case, self.found, ids, work, LIMIT_S)), holder
        )
        stack.callback(lambda: holder.go(arm.processes))
        arm.open()
        return arm

    def evict(self) -> None:
        page_cache.evict(self.files)
        left = page_cache.residency(self.files).fraction
        if left is None or left > COLD:
            raise SystemExit(f"{self.case.format}: {left} of the data stayed in memory")


def unit(data: Halves, slice_s: float, draw: random.Random) -> float:
    """Return log(time of a / time of b) over one unit; ``slice_s`` 0: one after the other."""
    whole = data.found.samples // (2 * BATCH) * (2 * BATCH)
    first, second = list(range(whole // 2)), list(range(whole // 2, whole))
    draw.shuffle(first)
    draw.shuffle(second)
    if slice_s:
        a1, b1 = data.run([first, second], slice_s, draw)
        b2, a2 = data.run([first, second], slice_s, draw)
        return math.log((a1 + a2) / (b1 + b2))
    (a,), (b,) = (data.run([first + second], math.inf, draw) for _ in "ab")
    return math.log(a / b) * draw.choice((1, -1))


def main() -> int:
    parser = suites.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=5120)
    parser.add_argument("--units", type=int, default=12)
    parser.add_argument("--slices", nargs="+", type=float, default=[0.5, 1.0, 2.0], help="seconds")
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=FORMATS)
    args = parser.parse_args()
    found = suites.dataset(
        args.data, "imagenet-like", args.samples, [f for f in args.formats if f != "jpeg"]
    )
    draw, figures = random.Random(1), []
    for form in args.formats:
        data = Halves(found, form)
        logs: dict[float, list[float]] = {s: [] for s in (0.0, *args.slices)}
        walls = dict.fromkeys(logs, 0.0)
        for _ in range(args.units):
            for slice_s in draw.sample(list(logs), len(logs)):
                begun = time.perf_counter()
                logs[slice_s].append(unit(data, slice_s, draw))
                walls[slice_s] += time.perf_counter() - begun
        for slice_s, each in logs.items():
            sd, wall_s = statistics.stdev(each), walls[slice_s] / len(each)
            n = max(2, int(BUDGET_S / wall_s))
            half = 2 * sd / math.sqrt(n)
            figures.append({"format": form, "slice_s": slice_s, "sd": sd, "unit_s": wall_s,
                            "mean": statistics.fmean(each), "half_width": half})  # fmt: skip
            words = f"slices of {slice_s:g} s" if slice_s else "one after the other"
            print(
                f"{form:5} {words:20} sd {sd:.2%}, mean {statistics.fmean(each):+.2%}, "
                f"{wall_s:.1f} s a unit, ten minutes: +- {half:.2%}",
                flush=True,
            )
    return suites.finish(args, figures, True)


if __name__ == "__main__":
    sys.exit(main())
