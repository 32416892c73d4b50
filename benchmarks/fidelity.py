"""Is iobench's ``load`` the loop a user would write?  Ratio of the two, warm, in turns.

Arm: ``python -m iobench.worker``, the process that every trial runs.  Base: handwritten.py, which
imports nothing from iobench.  Same library, settings, samples, order and window rule.  Each block
of fresh processes, one of each, is a pair; they take turns as the arms of a contrast do.
Target: the ratio of seconds per sample after the warm-up, arm / base, within 0.98 to 1.02, its 95 %
interval at most 1 % to either side (0.5 % of the first five arms); what is beyond 1 % is named.
Blocks follow until the interval is as narrow, whatever the ratio.  Those in the file that --json
names count: a run that was ended goes on.

Threads of Grain and of DALI may get memory that glibc has given back and maps anew, for every
batch or for none: which hangs on a few pages, and differs from process to process
(docs/validation.md).  Both processes of these arms get an allocator that gives nothing back.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
from typing import Any
from unittest import mock

from benchmarks import suites
from benchmarks.by_hand import ByHand, warmup_of
from iobench.analysis.evidence import trial_window
from iobench.core import registry
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.records import VALID, Record
from iobench.equations import signed_rank, stats
from iobench.run import prepare
from iobench.run.block import take_turns
from iobench.run.trial import Attempt, TrialSettings, run_trial

#: Name of an arm -> what its case has beside the pipeline before the first blank.
ARMS: dict[str, dict[str, Any]] = {
    "torch:lmdb": {},
    "torch:hdf5": {},
    "torch:jpeg": {},
    "torch:tar": {},
    "dali:jpeg": {},
    "torch:jpeg threads": {"loader_options": {"threads": 4}},
    "torch:jpeg any-order": {"loader_options": {"in_order": False}},
    "torch:parquet": {"order": "stored"},  # shuffled, each sample costs a row group
    "torch:tfrecord": {},
    "spdl:jpeg": {},
    "grain:jpeg": {},
    "grain:arrayrecord": {},
    # shards so small that the workers' shares are nearly equal
    "webdataset:tar": {"order": "shards:256", "format_options": {"shard_bytes": 4 << 20}},
}
#: Thresholds of malloc (mallopt(3)), in bytes; a loader -> what its arms get.  DALI's threads have
#: arenas of their own, whose heaps glibc unmaps when they are empty, whatever the thresholds.
THRESHOLDS = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}
FIXED = {"grain": THRESHOLDS, "dali": {**THRESHOLDS, "MALLOC_ARENA_MAX": "1"}}
MOST, HALF_WIDTH, NAMED = 0.02, 0.01, 0.01
#: Arms whose interval is to be narrower.
FIRST, NARROW = ("torch:lmdb", "torch:hdf5", "torch:jpeg", "torch:tar", "dali:jpeg"), 0.005
#: Pipeline -> its pairs, and what they show.
Rows = dict[str, dict[str, Any]]
#: A block whose cache state was disproven is run again.
ATTEMPTS = 3
SETTINGS = TrialSettings(limit_s=600.0)


def case_of(pipeline: str, found: Dataset, args: Any) -> Case:
    loader, format_ = pipeline.partition(" ")[0].split(":")
    options = ARMS[pipeline].get("format_options", {})
    return Case(
        label=pipeline,
        format=format_,
        loader=loader,
        trainer="null",
        location=found.root,
        batch=args.batch,
        workers=args.workers,
        prefetch=args.prefetch,
        samples=args.samples,
        seed=1,
        layout=registry.layout_of(format_, options),
        **ARMS[pipeline],
    )


def environment_of(case: Case) -> dict[str, str]:
    """Return the variables that both processes of an arm are given."""
    return FIXED.get(case.loader, {})


def seconds(record: Record) -> float:
    """Return the seconds per sample of a trial; the benchmark ends where there are none."""
    measured = trial_window(record)
    if record.status != VALID or measured is None:
        raise SystemExit(f"{record.trial.id}: {record.status}: {'; '.join(record.reasons)}")
    steps = record.ranks[0].steps
    expected = warmup_of(record.trial.case, len(steps.done_s))
    if steps.warmup != expected:
        raise SystemExit(f"{record.trial.id}: warm-up {steps.warmup}, by hand {expected}")
    return measured.seconds_per_sample


def epochs_of(case: Case, found: Dataset, loop_s: float) -> int:
    """Return how many epochs take so long, by one that runs alone."""
    record = run_trial(Trial(f"{case.label} alone", case, "load", "warm"), found, 1, SETTINGS)
    samples = sum(record.ranks[0].steps.samples) if record.ranks else 1
    return math.ceil(loop_s / (seconds(record) * samples))


def pair(case: Case, found: Dataset, block: int, epochs: int, slice_s: float) -> dict[str, float]:
    """Run one block; return the seconds per sample of each side."""
    sides = {"iobench": Attempt, "handwritten": ByHand}
    for attempt in range(1, 1 + ATTEMPTS):
        where = f"{case.label} block {block}.{attempt}"
        names = random.Random(where).sample(sorted(sides), 2)  # who starts first
        tries = {
            name: sides[name](
                Trial(
                    f"{where} {name}", case, "load", "warm", arm=name, block=block, epochs=epochs,
                    slice_s=slice_s,
                ),
                found, SETTINGS,
            )
            for name in names
        }  # fmt: skip
        take_turns(list(tries.values()), SETTINGS.agent)
        records = {name: tries[name].record(attempt, at_once=2) for name in tries}
        if all(record.status == VALID for record in records.values()):
            break
    return {name: seconds(record) for name, record in records.items()}


def judge(pipeline: str, pairs: list[dict[str, float]]) -> dict[str, Any]:
    """Return the ratio, its 95 % interval, and whether both meet the target."""
    arm, base = ([p[side] for p in pairs] for side in ("iobench", "handwritten"))
    found = stats.paired_ratio(arm, base)
    half = (found.high - found.low) / 2
    widest = NARROW if pipeline in FIRST else HALF_WIDTH
    return {
        "pipeline": pipeline,
        "pairs": len(pairs),
        "ratio": found.value,
        "low": found.low,
        "high": found.high,
        "half_width": half,
        "widest": widest,
        "met": abs(found.value - 1) <= MOST and half <= widest,
        "samples_per_s": len(base) / sum(base),
        "raw": pairs,
    }


def kept(args: Any) -> Rows:
    """Return what the file that --json names has of earlier runs."""
    found = json.loads(args.json.read_text()) if args.json and args.json.exists() else []
    return {row["pipeline"]: row for row in found}


def wanting(row: dict[str, Any] | None, args: Any) -> bool:
    """Tell whether an arm needs a further block."""
    if row is None or row["pairs"] < args.blocks:
        return True
    return row["half_width"] > row["widest"] and row["pairs"] < args.most


def measured(case: Case, found: Dataset, args: Any, rows: Rows) -> None:
    """Run the blocks of an arm that are wanting; after each its row is judged anew and kept."""
    epochs, row = 0, rows.get(case.label)
    pairs = list(row["raw"]) if row else []
    while wanting(row, args):
        epochs = epochs or epochs_of(case, found, args.loop_s)
        pairs.append(both := pair(case, found, len(pairs) + 1, epochs, args.slice_s))
        ratio = both["iobench"] / both["handwritten"]
        print(f"  {case.label} {len(pairs)}: {ratio:.4f}", file=sys.stderr, flush=True)
        if len(pairs) >= signed_rank.FLOOR_PAIRS:
            row = {**judge(case.label, pairs), "environment": environment_of(case)}
            rows[case.label] = row
            suites.keep(args, list(rows.values()))


def main() -> int:
    parser = suites.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", default="imagenet-like")
    parser.add_argument("--pipelines", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--blocks", type=int, default=16, help="at least, of two fresh processes")
    parser.add_argument("--most", type=int, default=100, help="blocks of an arm")
    parser.add_argument("--loop-s", type=float, default=20.0, help="of each loop, alone")
    parser.add_argument("--slice-s", type=float, default=0.1)
    parser.add_argument("--samples", type=int, default=1280, help="an epoch")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--prefetch", type=int, default=2)
    args = parser.parse_args()
    if args.blocks < signed_rank.FLOOR_PAIRS:
        parser.error(f"--blocks: at least {signed_rank.FLOOR_PAIRS}, for an interval")
    found = suites.dataset(args.data, args.recipe, args.samples, [])
    cases = {pipeline: case_of(pipeline, found, args) for pipeline in args.pipelines}
    prepare.forms(list(cases.values()), found, lambda *_: None)
    rows = kept(args)
    for pipeline, case in cases.items():
        with mock.patch.dict(os.environ, environment_of(case)):
            measured(case, found, args, rows)
        row = rows[pipeline]
        print(
            f"{pipeline:20} {row['ratio']:.4f} ({row['low']:.4f} to {row['high']:.4f}, "
            f"+-{row['half_width']:.2%}, {row['pairs']} blocks) {row['samples_per_s']:.0f} "
            f"samples/s by hand, {'met' if row['met'] else 'MISSED'}",
            flush=True,
        )
    asked = [rows[pipeline] for pipeline in cases]
    if beyond := [row["pipeline"] for row in asked if abs(row["ratio"] - 1) > NAMED]:
        print(f"beyond {NAMED:.0%}: {', '.join(beyond)}")
    return suites.finish(args, list(rows.values()), all(row["met"] for row in asked))


if __name__ == "__main__":
    sys.exit(main())
