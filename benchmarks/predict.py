"""Does `iobench predict` foretell?  What-ifs written down, then measured in fresh runs.

First every base job is measured and all predictions are written to ``--predictions``; only then is
each change made for real and measured.  The rival is "nothing changes".  Target: a median absolute
error of at most 10 %.
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
from iobench.run import store
from iobench.run.trial import TrialSettings

BATCH = 8
TARGET = 0.10
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
    pipelines: Sequence[str] = ("jpeg",)
    samples: int = 256  # where steps are short, more: a window of 0.2 s measures hiccups


def accelerator(name: str) -> Change:
    """Another accelerator, emulated."""
    return Change(f"accelerator={name}", {"trainer_options": {"accelerator": name}})


def workers(count: int) -> Change:
    """So many workers."""
    return Change(f"workers={count}", {"workers": count})


BASES = (
    Base("slow decoding", "warm",
         (workers(2), workers(4), workers(8), accelerator("v100"), accelerator("h100")),
         {"workers": 1}, delay_s=0.006),
    Base("no workers", "warm", (workers(1), workers(2), workers(4)), {"workers": 0},
         delay_s=0.003),
    Base("easy", "warm", (*map(accelerator, ("v100", "a100", "h100")), workers(4)),
         {"workers": 2}, step_s=0.04, samples=1024),
    Base("another format", "warm", (Change("pipeline=torch:lmdb", pipeline="lmdb"),),
         {"workers": 2}, pipelines=("jpeg", "lmdb")),
    Base("one core", "warm",
         (Change("cores=2", {"cpus": 2.0, "workers": 2}), accelerator("v100"), workers(2)),
         {"workers": 1, "cpus": 1.0}, step_s=0.004),
    Base("slow mount", "cold",
         (Change("nodes=2", share=0.5), Change("nodes=4", share=0.25), accelerator("h100"),
          accelerator("v100"), workers(4), Change("cached=1", cache="warm")),
         {"workers": 2}, step_s=0.04, read_bps=8_000_000),
    Base("tight mount", "cold", (Change("nodes=2", share=0.5), accelerator("a100"), workers(4),
                                 Change("cached=1", cache="warm")),
         {"workers": 2}, step_s=0.02, read_bps=3_000_000),
)  # fmt: skip


def document(base: Base, repeats: int, change: Change | None = None) -> dict[str, Any]:
    """Return the spec of a base job, or of a fresh run of a change to it."""
    case = {"trainer": "emulated", "batch": BATCH, "samples": base.samples, "transform": "rrc224",
            "trainer_options": {"step_s": base.step_s}, **base.case,
            **(change.case if change else {})}  # fmt: skip
    pipelines = [change.pipeline] if change and change.pipeline else list(base.pipelines)
    stages = ["train"] if change else ["read", "decode", "load", "compute", "train"]
    if base.read_bps and not change:
        stages.append("ceiling")
    return {
        "name": "predict", "budget": "30m", "compute_s": 0.5, "limit_s": 200, "case": case,
        "matrix": {"pipeline": pipelines[:1] if change else pipelines},
        "ladder": {"stages": stages, "repeats": repeats, "digest": False},
    }  # fmt: skip


@contextlib.contextmanager
def place(base: Base, data: Path, share: float) -> Iterator[tuple[Dataset, TrialSettings]]:
    """Yield the data of a job and the settings that it runs under."""
    settings = TrialSettings(compute_s=0.5, decode_delay_s=base.delay_s)
    if not base.read_bps:
        yield (
            dataset(data, "smoke", base.samples, [p for p in base.pipelines if p != "jpeg"]),
            settings,
        )
        return
    with throttled(1 << 28) as mount:
        found = dataset(mount.path, "smoke", base.samples, [])
        mount.limit(int(base.read_bps * share))
        yield found, dataclasses.replace(settings, enter=mount.enter([]))


def foretold(base: Base, args: Any) -> list[tuple[Change, Prediction]]:
    """Measure a base job; return its changes with what is predicted of each."""
    with (
        tempfile.TemporaryDirectory(prefix="iobench-predict-") as results,
        place(base, args.data, 1.0) as (found, settings),
    ):
        run(document(base, args.repeats), found, results=Path(results), settings=settings,
            quiet=True)  # fmt: skip
        kept = store.find(Path(results))
        suite = analyse(kept.plan(), kept.records())
    label = suite.pipelines[0].case
    out = []
    for change in base.changes:
        rows = [p for p in predict(suite, [change.what], label=label) if p.cache == base.cache]
        out += [(change, p) for p in rows]
    return out


def measured(base: Base, change: Change, args: Any) -> float:
    """Make a change for real; return samples/s of training."""
    with (
        tempfile.TemporaryDirectory(prefix="iobench-predict-") as results,
        place(base, args.data, change.share) as (found, settings),
    ):
        spec = document(base, args.repeats, change)
        analysis, _ = run(spec, found, results=Path(results), settings=settings, quiet=True)
    rung = analysis["pipelines"][0]["stages"]["train"][change.cache or base.cache]
    return float((rung["samples_per_s"] or {}).get("value") or math.nan)


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="bases whose name contains this")
    parser.add_argument("--what", default="", help="what-ifs whose name contains this")
    parser.add_argument("--predictions", type=Path, default=Path("predictions.json"),
                        help="written before anything of it is measured")  # fmt: skip
    args = parser.parse_args()
    bases = [
        dataclasses.replace(base, changes=[c for c in base.changes if args.what in c.what])
        for base in BASES
        if args.only in base.name
    ]
    bases = [base for base in bases if base.changes]
    written = [(base, change, p) for base in bases for change, p in foretold(base, args)]
    args.predictions.write_text(
        json.dumps([{"base": b.name, "what": c.what, "now": p.now.value, "then": p.rate.value,
                     "binds": [p.before, p.after]} for b, c, p in written], indent=1)
    )  # fmt: skip
    rows = []
    for base, change, p in written:
        truth = measured(base, change, args)
        error, rival = p.rate.value / truth - 1, p.now.value / truth - 1
        covers = p.rate.low <= truth <= p.rate.high
        print(f"{base.name:14} {change.what:20} now {p.now.value:6.0f} predicted "
              f"{p.rate.value:6.0f} measured {truth:6.0f}: {error:+6.1%} (nothing changes: "
              f"{rival:+7.1%}), {p.before} -> {p.after}{'' if covers else ', outside its limits'}",
              flush=True)  # fmt: skip
        rows.append({"base": base.name, "what": change.what, "error": error, "rival": rival,
                     "changes": p.before != p.after, "covers": covers})  # fmt: skip
    ours, theirs = (median(abs(r[k]) for r in rows) for k in ("error", "rival"))
    print(f"{len(rows)} what-ifs, {sum(r['changes'] for r in rows)} change what binds: median "
          f"absolute error {ours:.1%}, of 'nothing changes' {theirs:.1%}")  # fmt: skip
    return finish(args, rows, ours <= TARGET)


if __name__ == "__main__":
    sys.exit(main())
