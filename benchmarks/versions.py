"""The main job of an earlier version against that of this one: what do both decide in equal time?

Each turn runs ``make bench-io`` of both, one after the other, which first is drawn, in clones of
their own below ``--out`` (two sets of images, some 20 GB).  A call adds ``--runs`` turns to what is
there and judges all; ``--runs 0`` judges only.  Turns should lie at different hours.  Wanted of at
least six, over the primary warm contrasts of a container with bare metal, simultaneous intervals:
median half-width at most a quarter of the old one's, and at most 1.4 % in hours that the start's
probe calls quiet, 2.5 % in others; in five of six runs at least seven of eight decided; of all
single 95 % intervals 43 of 48 cover their pooled ratio; none FASTER here and SLOWER there.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from benchmarks.suites import arguments, finish
from iobench.equations.stats import EQUIVALENT, FASTER, SLOWER
from iobench.plan.outlook import outlook
from iobench.run import store

OLD, NEW = "old", "new"
#: The last version whose arms ran one after the other.
BEFORE = "d5bd27e"
FEWEST, SHARE, QUIET, NOISY, COVERED = 6, 0.25, 0.014, 0.025, 43 / 48
DECIDED, IN_RUNS = 7 / 8, 5 / 6
VERDICTS = (EQUIVALENT, FASTER, SLOWER)


class Seen(NamedTuple):
    """What a run said of its warm contrasts; ``quiet``: what its start's probe called the hour."""

    created: str
    contrasts: Sequence[Mapping[str, Any]]
    quiet: bool | None

    @property
    def half_width(self) -> float:
        """Return the median half-width of the simultaneous intervals, as a share of the ratio."""
        return median(
            (c["simultaneous"]["high"] - c["simultaneous"]["low"]) / 2 / c["ratio"]
            if (c.get("simultaneous") or {}).get("high") is not None
            else math.inf
            for c in self.contrasts
        )

    @property
    def decided(self) -> int:
        """Return how many have a verdict."""
        return sum(c["verdict"] in VERDICTS for c in self.contrasts)


def turn(out: Path, versions: Mapping[str, str]) -> None:
    """Run the main job of both once, in an order that is drawn."""
    for side in random.sample(sorted(versions), 2):
        clone = out / side
        if not clone.exists():
            subprocess.run(["git", "clone", "-q", ".", str(clone)], check=True)
            subprocess.run(["git", "-C", str(clone), "checkout", "-q", versions[side]], check=True)
        print(f"make bench-io, {side} ({versions[side]})", file=sys.stderr, flush=True)
        with open(out / f"{side}.log", "a") as log:
            done = subprocess.run(
                ["make", "-C", str(clone), "bench-io"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
            )  # fmt: skip
        print(f"  status {done.returncode}; {log.name}", file=sys.stderr, flush=True)


def runs(results: Path, *, probed: bool = False) -> Iterator[Seen]:
    """Yield what each finished run below a folder of results said; ``probed``: the hour too."""
    for path in sorted(results.glob("*-bench-io/analysis.json")):
        found = json.loads(path.read_text())
        expected = outlook(store.find(path.parent).plan()) if probed else None
        contrasts = [c for c in found["contrasts"] if _wanted(c)]
        yield Seen(found["created"], contrasts, expected.quiet if expected else None)


def _wanted(contrast: Mapping[str, Any]) -> bool:
    return contrast["primary"] and contrast["cache"] == "warm" and contrast["base_name"] == "bare"


def coverage(seen: Sequence[Seen]) -> tuple[int, int]:
    """Return how many single 95 % intervals cover their ratio over all runs, and of how many."""
    pairs = defaultdict(list)
    for run in seen:
        for c in run.contrasts:
            pairs[c["id"]] += [math.log(ratio) for ratio in c["ratios"]]
    covers = [
        c["interval"]["low"] <= math.exp(fmean(pairs[c["id"]])) <= c["interval"]["high"]
        for run in seen
        for c in run.contrasts
        if c["interval"]
    ]
    return sum(covers), len(covers)


def contradictions(seen: Sequence[Seen]) -> list[str]:
    """Return the contrasts that are FASTER in one run and SLOWER in another."""
    said = defaultdict(set)
    for run in seen:
        for c in run.contrasts:
            said[c["id"]].add(c["verdict"])
    return [name for name, verdicts in said.items() if {FASTER, SLOWER} <= verdicts]


def judge(old: Sequence[Seen], new: Sequence[Seen]) -> bool:
    """Print every run and what follows from all; return whether the targets are met."""
    for side, seen in ((OLD, old), (NEW, new)):
        for run in seen:
            hour = {True: "quiet", False: "noisy", None: "not probed"}[run.quiet]
            print(f"{side} {run.created} {hour:10} half-width {run.half_width:6.2%}, "
                  f"{run.decided} of {len(run.contrasts)} decided")  # fmt: skip
    if not old or not new:
        return False
    ours, theirs = (median(run.half_width for run in seen) for seen in (new, old))
    covered, intervals = coverage(new)
    against = contradictions(new)
    enough = sum(run.decided >= DECIDED * len(run.contrasts) for run in new)
    print(f"median half-width {ours:.2%}, of the old {theirs:.2%}: {ours / theirs:.2f} of it; "
          f"{enough} of {len(new)} runs decide; {covered} of {intervals} single intervals cover "
          f"the pooled ratio; contradictions: {', '.join(against) or 'none'}")  # fmt: skip
    narrow = all(run.half_width <= (QUIET if run.quiet else NOISY) for run in new)
    if len(new) < FEWEST or len(old) < FEWEST:
        print(f"too few runs: {FEWEST} of each are wanted")
        return False
    return (
        ours <= SHARE * theirs
        and narrow
        and enough >= IN_RUNS * len(new)
        and covered >= COVERED * intervals
        and not against
    )


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--old", default=BEFORE, help="the earlier version")
    parser.add_argument("--new", default="HEAD", help="the later one")
    parser.add_argument("--runs", type=int, default=1, help="turns to add, 55 minutes each")
    parser.add_argument("--out", type=Path, default=Path("results/versions"), help="goes on there")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for _ in range(args.runs):
        turn(args.out, {OLD: args.old, NEW: args.new})
    old, new = (list(runs(args.out / side / "results", probed=side == NEW)) for side in (OLD, NEW))
    figures = {
        side: [{**run._asdict(), "half_width": run.half_width, "decided": run.decided}
               for run in seen]
        for side, seen in ((OLD, old), (NEW, new))
    }  # fmt: skip
    return finish(args, figures, judge(old, new))


if __name__ == "__main__":
    sys.exit(main())
