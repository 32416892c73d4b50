"""Does `iobench predict` foretell?  What-ifs written down, then measured in fresh runs.

First every base job is measured and all predictions are written to ``--predictions``; only then is
each change made for real and measured.  ``--write-only`` stops between the two, so that the
predictions can be committed, and ``--measure FILE`` goes on from there.  Of another format no
training is measured before, only its reading and loading.  The rival is "nothing changes".
Targets: a median absolute error of at most 10 %, of at least 20 what-ifs of which at least 12
change what binds.  A what-if without a prediction or without a measurement is counted and named.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.suites import arguments, dataset, finish, run
from benchmarks.throttle import throttled
from iobench.advise.predict import Prediction, predict
from iobench.analysis.suite import analyse
from iobench.core.cases import Dataset
from iobench.core.clock import utc
from iobench.run import store
from iobench.run.trial import TrialSettings

BATCH = 8
TARGET = 0.10
#: What-ifs that are judged, and those of them that change what binds: at least so many.
FEWEST, FEWEST_CHANGES = 20, 12
Case = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Change:
    """A what-if, and how it is made real; ``share``: of the mount; ``cache``: not the base's."""

    what: str
    case: Case = dataclasses.field(default_factory=dict)
    share: float = 1.0
    pipeline: str = ""
    cache: str = ""


@dataclasses.dataclass(frozen=True)
class Base:
    """A job as it is, and the changes to foretell at one cache state."""

    name: str
    cache: str
    changes: Sequence[Change]
    case: Case = dataclasses.field(default_factory=dict)
    step_s: float = 0.02
    delay_s: float = 0.0
    read_bps: int = 0
    read_iops: int = 0
    others: Sequence[str] = ()  # pipelines beside jpeg whose reading and loading are measured
    samples: int = 256  # where steps are short, more: a window of 0.2 s measures hiccups


def accelerator(name: str) -> Change:
    """Another accelerator, emulated."""
    return Change(f"accelerator={name}", {"trainer_options": {"accelerator": name}})


def workers(count: int) -> Change:
    """So many workers."""
    return Change(f"workers={count}", {"workers": count})


def nodes(count: int) -> Change:
    """So many nodes: this one gets its share of the mount."""
    return Change(f"nodes={count}", share=1 / count)


def pipeline(name: str) -> Change:
    """Another format."""
    return Change(f"pipeline=torch:{name}", pipeline=name)


CACHED = Change("cached=1", cache="warm")


BASES = (
    Base("slow decoding", "warm",
         (workers(2), workers(4), workers(8), accelerator("v100"), accelerator("h100")),
         {"workers": 1}, delay_s=0.006),
    Base("slow decoding, long steps", "warm", tuple(map(accelerator, ("v100", "a100", "h100"))),
         {"workers": 4}, step_s=0.08, delay_s=0.006),
    Base("no workers", "warm", (workers(1), workers(2), workers(4)), {"workers": 0},
         delay_s=0.003),
    Base("easy", "warm", (*map(accelerator, ("v100", "a100", "h100")), workers(4)),
         {"workers": 2}, step_s=0.04, samples=1024),
    Base("another format", "warm", (pipeline("lmdb-raw"), pipeline("lmdb")), {"workers": 2},
         delay_s=0.006, others=("lmdb-raw", "lmdb")),
    Base("one core", "warm",
         (Change("cores=2", {"cpus": 2.0, "workers": 2}), accelerator("v100"), workers(2)),
         {"workers": 1, "cpus": 1.0}, step_s=0.004),
    Base("slow mount", "cold",
         (nodes(2), nodes(4), nodes(8), accelerator("h100"), accelerator("v100"), workers(4),
          CACHED),
         {"workers": 2}, step_s=0.04, read_bps=8_000_000),
    Base("slow mount, long steps", "cold",
         (nodes(2), nodes(16), accelerator("a100"), accelerator("h100"), CACHED),
         {"workers": 2}, step_s=0.16, read_bps=8_000_000),
    Base("tight mount", "cold", (nodes(2), accelerator("a100"), workers(4), CACHED),
         {"workers": 2}, step_s=0.02, read_bps=3_000_000),
    Base("far mount", "cold", (accelerator("v100"), CACHED), {"workers": 2}, step_s=0.04,
         read_bps=1_500_000),
    Base("few requests", "cold", (pipeline("tar"), pipeline("lmdb"), CACHED), {"workers": 2},
         step_s=0.08, read_iops=60, others=("tar", "lmdb")),
)  # fmt: skip


def document(base: Base, repeats: int, change: Change | None = None) -> dict[str, Any]:
    """Return the spec of a base job, or of a fresh run of a change to it."""
    case = {"trainer": "emulated", "batch": BATCH, "samples": base.samples, "transform": "rrc224",
            "trainer_options": {"step_s": base.step_s}, **base.case,
            **(change.case if change else {})}  # fmt: skip
    stages = ["train"] if change else ["read", "decode", "load", "compute", "train"]
    alone = ["read", "load", "compute"]
    if _on_mount(base) and not change:
        stages.append("ceiling")
        alone.append("ceiling")
    cache = (change and change.cache) or base.cache
    others = (
        []
        if change
        else [
            {**case, "pipeline": f"torch:{name}", "stages": alone, "repeats": repeats}
            for name in base.others
        ]
    )
    return {
        "name": "predict", "budget": "40m", "compute_s": 0.5, "limit_s": 200, "case": case,
        "matrix": {"pipeline": [f"torch:{(change and change.pipeline) or 'jpeg'}"]},
        "cases": others,
        "ladder": {"stages": stages, "repeats": repeats, "digest": False, "probe": False,
                   "caches": ["cold", "warm"] if cache == "cold" and not change else [cache]},
    }  # fmt: skip


def _on_mount(base: Base) -> bool:
    return bool(base.read_bps or base.read_iops)


@contextlib.contextmanager
def place(base: Base, data: Path, share: float) -> Iterator[tuple[Dataset, TrialSettings]]:
    """Yield the data of a job and the settings that it runs under."""
    settings = TrialSettings(compute_s=0.5, decode_delay_s=base.delay_s)
    if not _on_mount(base):
        yield dataset(data, "smoke", base.samples, base.others), settings
        return
    with throttled(1 << 28) as mount:
        found = dataset(mount.path, "smoke", base.samples, base.others)
        mount.limit(int(base.read_bps * share) or None, int(base.read_iops * share) or None)
        yield found, dataclasses.replace(settings, enter=mount.enter([]))


def foretold(base: Base, args: Any) -> list[dict[str, Any]]:
    """Measure a base job; return what is predicted of each of its changes, as rows to write."""
    with (
        tempfile.TemporaryDirectory(prefix="iobench-predict-") as results,
        place(base, args.data, 1.0) as (found, settings),
    ):
        run(document(base, args.repeats), found, results=Path(results), settings=settings,
            quiet=True)  # fmt: skip
        kept = store.find(Path(results))
        suite = analyse(kept.plan(), kept.records())
    label = next(case.case for case in suite.pipelines if case.format == "jpeg")
    out = []
    for change in base.changes:
        rows = [p for p in predict(suite, [change.what], label=label) if p.cache == base.cache]
        out.append({"base": base.name, "what": change.what, **_predicted(rows)})
        print(f"{base.name:26} {change.what:22} {out[-1]}", file=sys.stderr, flush=True)
    return out


def _predicted(rows: Sequence[Prediction]) -> dict[str, Any]:
    if not rows:
        return {"reason": "no prediction can be given"}
    p = rows[0]
    limits = [p.rate.low, p.rate.high] if p.rate.limited else None
    return {"now": p.now.value, "then": p.rate.value, "limits": limits,
            "binds": [p.before, p.after]}  # fmt: skip


def measured(base: Base, change: Change, args: Any) -> float:
    """Make a change for real; return samples/s of training, NaN where it gave none."""
    with (
        tempfile.TemporaryDirectory(prefix="iobench-predict-") as results,
        place(base, args.data, change.share) as (found, settings),
    ):
        spec = document(base, args.repeats, change)
        analysis, _ = run(spec, found, results=Path(results), settings=settings, quiet=True)
    rung = analysis["pipelines"][0]["stages"]["train"][change.cache or base.cache]
    return float((rung["samples_per_s"] or {}).get("value") or math.nan)


def judged(row: dict[str, Any], args: Any) -> dict[str, Any]:
    """Measure a predicted change, print it, and return the row with what was found."""
    name = f"{row['base']:26} {row['what']:22}"
    base, change = _known(row)
    if "then" not in row:
        print(f"{name} {row['reason']}", flush=True)
        return row
    truth = measured(base, change, args)
    if not math.isfinite(truth):
        print(f"{name} predicted {row['then']:.0f}, and training could not be measured", flush=True)
        return {**row, "reason": "training could not be measured"}
    error, rival = row["then"] / truth - 1, row["now"] / truth - 1
    low, high = row["limits"] or (-math.inf, math.inf)
    covers = low <= truth <= high
    before, after = row["binds"]
    print(f"{name} now {row['now']:6.0f} predicted {row['then']:6.0f} measured {truth:6.0f}: "
          f"{error:+6.1%} (nothing changes: {rival:+7.1%}), {before} -> {after}"
          f"{'' if covers else ', outside its limits'}", flush=True)  # fmt: skip
    return {**row, "truth": truth, "error": error, "rival": rival, "changes": before != after,
            "covers": covers}  # fmt: skip


def _known(row: dict[str, Any]) -> tuple[Base, Change]:
    """Return the base and the change of a row; raises SystemExit for those of another version."""
    for base in BASES:
        for change in base.changes:
            if (base.name, change.what) == (row["base"], row["what"]):
                return base, change
    raise SystemExit(f"{row['base']}: {row['what']} is no what-if of this benchmark")


def summary(rows: Sequence[dict[str, Any]]) -> bool:
    """Print the figures of all rows; return whether the targets are met."""
    kept = [row for row in rows if "error" in row]
    for row in rows:
        if "error" not in row:
            print(f"not judged: {row['base']}, {row['what']}: {row['reason']}")
    changes = sum(row["changes"] for row in kept)
    if not kept:
        return False
    ours, theirs = (median(abs(row[k]) for row in kept) for k in ("error", "rival"))
    moved = [abs(row["error"]) for row in kept if row["changes"]]
    print(
        f"{len(kept)} of {len(rows)} what-ifs judged, {changes} change what binds"
        f"{f' (median absolute error {median(moved):.1%})' if moved else ''}: median absolute "
        f"error {ours:.1%}, of 'nothing changes' {theirs:.1%}"
    )
    if len(kept) < FEWEST or changes < FEWEST_CHANGES:
        print(f"too few: {FEWEST} are wanted, {FEWEST_CHANGES} that change what binds")
        return False
    return ours <= TARGET


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="bases whose name contains this")
    parser.add_argument("--what", default="", help="what-ifs whose name contains this")
    parser.add_argument("--predictions", type=Path, default=Path("predictions.json"),
                        help="written before anything of it is measured")  # fmt: skip
    both = parser.add_mutually_exclusive_group()
    both.add_argument("--write-only", action="store_true", help="write the predictions and stop")
    both.add_argument("--measure", type=Path, metavar="FILE", help="of these predictions")
    args = parser.parse_args()
    if args.measure:
        written = json.loads(args.measure.read_text())["rows"]
    else:
        written = [row for base in _asked(args) for row in foretold(base, args)]
        document = {"written": utc(), "repeats": args.repeats, "rows": written}
        args.predictions.write_text(json.dumps(document, indent=1) + "\n")
    if args.write_only:
        given = [row for row in written if "then" in row]
        changes = sum(row["binds"][0] != row["binds"][1] for row in given)
        print(f"{args.predictions}: {len(given)} of {len(written)} what-ifs are predicted, "
              f"{changes} change what binds")  # fmt: skip
        return 0
    rows = [judged(row, args) for row in written if args.what in row["what"]
            and args.only in row["base"]]  # fmt: skip
    return finish(args, rows, summary(rows))


def _asked(args: Any) -> list[Base]:
    bases = [
        dataclasses.replace(base, changes=[c for c in base.changes if args.what in c.what])
        for base in BASES
        if args.only in base.name
    ]
    return [base for base in bases if base.changes]


if __name__ == "__main__":
    sys.exit(main())
