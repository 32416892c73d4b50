"""The main job of an earlier version against that of this one: what do both decide in equal time?

Each turn runs ``make bench-io`` of both, one after the other, which first is drawn, in clones of
their own below ``--out`` (two sets of images, some 20 GB).  A call adds ``--runs`` turns to what is
there and judges all; ``--runs 0`` judges only.  Figures of each run are kept in ``--kept``, so
turns may be of several machines; its folder ``earlier`` has those of earlier methods, which are not
judged.  Turns should lie at different hours.

Wanted of at least six, over the primary warm contrasts of a container with bare metal, simultaneous
intervals: median half-width at most a quarter of the old one's, and at most 1.4 % in hours that the
start's probe calls quiet, 2.5 % in others; in five of six runs at least seven of eight decided; of
all single 95 % intervals 43 of 48 cover their pooled ratio; none FASTER here and SLOWER there.  Too
few pairs for simultaneous limits may have single ones (from six pairs), so these are compared too.
The time in which seven of eight were decided is printed.
"""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from benchmarks.suites import arguments, finish
from iobench.analysis.time_spent import span
from iobench.core.records import Record
from iobench.equations.stats import EQUIVALENT, FASTER, SLOWER
from iobench.plan.outlook import outlook
from iobench.run import store

OLD, NEW = "old", "new"
#: The last version whose arms ran one after the other.
BEFORE = "d5bd27e"
FEWEST, SHARE, QUIET, NOISY, COVERED = 6, 0.25, 0.014, 0.025, 43 / 48
DECIDED, IN_RUNS = 7 / 8, 5 / 6
KEPT_IN = Path(__file__).parent / "turns"
VERDICTS = (EQUIVALENT, FASTER, SLOWER)


#: What is kept of a contrast.
KEPT = ("id", "arm", "base", "ratio", "ratios", "verdict", "interval", "simultaneous")


class Seen(NamedTuple):
    """What a run said of its warm contrasts; ``quiet``: what its start's probe called the hour.

    ``decided_s``: from its first trial until seven of eight were decided; None: they were not, or
    it is not known.
    """

    created: str
    contrasts: Sequence[Mapping[str, Any]]
    quiet: bool | None
    decided_s: float | None = None

    @property
    def half_width(self) -> float:
        """Return the median half-width of the simultaneous intervals, as a share of the ratio."""
        return self._half_width("simultaneous")

    @property
    def single(self) -> float:
        """Return the same of the single intervals of 95 %."""
        return self._half_width("interval")

    def _half_width(self, kind: str) -> float:
        return median(
            (c[kind]["high"] - c[kind]["low"]) / 2 / c["ratio"]
            if (c.get(kind) or {}).get("high") is not None
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
        contrasts = [c for c in found["contrasts"] if _wanted(c)]
        run = Seen(found["created"], contrasts, None)
        if probed:
            kept = store.find(path.parent)
            expected, decided_s = outlook(kept.plan()), decided_after(contrasts, kept.records())
            quiet = expected.quiet if expected else None
            run = run._replace(quiet=quiet, decided_s=decided_s)
        yield run


def decided_after(
    contrasts: Sequence[Mapping[str, Any]], records: Sequence[Record]
) -> float | None:
    """Return the seconds from the first trial until the last pair that seven of eight rest on."""
    ends = []
    for c in (c for c in contrasts if c["verdict"] in VERDICTS):
        last = c["look"]["planned"][max(c["look"]["taken"], 1) - 1]
        mine = [r for r in records if r.trial.contrast in (c["id"], c["group"])]
        ends.append(max(end for _, end in _spans(r for r in mine if r.trial.block <= last)))
    wanted = math.ceil(DECIDED * len(contrasts))
    begun = min((begun for begun, _ in _spans(records)), default=0.0)
    return sorted(ends)[wanted - 1] - begun if len(ends) >= wanted > 0 else None


def _spans(records: Iterable[Record]) -> list[tuple[float, float]]:
    return [known for record in records if (known := span(record))]


def keep(folder: Path, side: str, seen: Iterable[Seen]) -> list[Seen]:
    """Write a file of figures for each run; return all that is kept of this side."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in seen:
        short = [{key: c[key] for key in KEPT} for c in run.contrasts]
        name = re.sub(r"\+.*|\W", "", run.created)
        document = json.dumps({**run._asdict(), "contrasts": short}, indent=1)
        (folder / f"{name}-{side}.json").write_text(document + "\n")
    return [Seen(**json.loads(p.read_text())) for p in sorted(folder.glob(f"*-{side}.json"))]


def _wanted(contrast: Mapping[str, Any]) -> bool:
    return contrast["primary"] and contrast["cache"] == "warm" and contrast["base_name"] == "bare"


def coverage(seen: Sequence[Seen]) -> tuple[int, int]:
    """Return how many single 95 % intervals cover their ratio over all runs, and of how many."""
    pairs: defaultdict[str, list[float]] = defaultdict(list)
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
            after = f" (7 of 8 after {run.decided_s / 60:.0f} min)" if run.decided_s else ""
            widths = f"{_percent(run.half_width)}, single {_percent(run.single)}"
            print(f"{side} {run.created} {hour:10} half-width {widths}, "
                  f"{run.decided} of {len(run.contrasts)} decided{after}")  # fmt: skip
    if not old or not new:
        return False
    narrower = _narrower("simultaneous", [r.half_width for r in new], [r.half_width for r in old])
    narrower &= _narrower("single", [r.single for r in new], [r.single for r in old])
    covered, intervals = coverage(new)
    against = contradictions(new)
    enough = sum(run.decided >= DECIDED * len(run.contrasts) for run in new)
    print(f"{enough} of {len(new)} runs decide; {covered} of {intervals} single intervals cover "
          f"the pooled ratio; contradictions: {', '.join(against) or 'none'}")  # fmt: skip
    narrow = all(run.half_width <= (QUIET if run.quiet else NOISY) for run in new)
    if len(new) < FEWEST or len(old) < FEWEST:
        print(f"too few runs: {FEWEST} of each are wanted")
        return False
    return (
        narrower
        and narrow
        and enough >= IN_RUNS * len(new)
        and covered >= COVERED * intervals
        and not against
    )


def _narrower(kind: str, new: Sequence[float], old: Sequence[float]) -> bool:
    """Print the medians of both versions' half-widths; return whether they are as wanted."""
    ours, theirs = median(new), median(old)
    share = f"{ours / theirs:.2f} of it" if math.isfinite(ours + theirs) else "no ratio"
    print(f"{kind} intervals: median half-width {_percent(ours)}, of the old {_percent(theirs)}: "
          f"{share}")  # fmt: skip
    return ours <= SHARE * theirs


def _percent(width: float) -> str:
    return f"{width:.2%}" if math.isfinite(width) else "no limits"


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--old", default=BEFORE, help="the earlier version")
    parser.add_argument("--new", default="HEAD", help="the later one")
    parser.add_argument("--runs", type=int, default=1, help="turns to add, 45 minutes each")
    parser.add_argument("--out", type=Path, default=Path("results/versions"), help="goes on there")
    parser.add_argument("--kept", type=Path, default=KEPT_IN, help="figures of each run")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for _ in range(args.runs):
        turn(args.out, {OLD: args.old, NEW: args.new})
    old, new = (
        keep(args.kept, side, runs(args.out / side / "results", probed=side == NEW))
        for side in (OLD, NEW)
    )
    figures = {
        side: [{**run._asdict(), "half_width": run.half_width, "single": run.single,
                "decided": run.decided}
               for run in seen]
        for side, seen in ((OLD, old), (NEW, new))
    }  # fmt: skip
    return finish(args, figures, judge(old, new))


if __name__ == "__main__":
    sys.exit(main())
