"""What bringing torch's batches into Caffe's Python costs: bridged against direct, in pairs.

Direct: the torch DataLoader in the worker's own Python.  Bridged: the same DataLoader in that same
Python, its batches handed through shared memory to a worker in Caffe's.  Same samples, order and
settings, warm, fresh processes, orders ABBA.  The trainer does nothing, or sleeps ``--step-ms`` as
an accelerator would: beside one the copy is hidden while a core is idle.

The ratio is seconds per sample, bridged / direct, with its 95 % interval; beside it what the bridge
itself noted a batch, and which share of a direct batch's time that is.
"""

from __future__ import annotations

import sys
from statistics import fmean, median
from typing import Any

from benchmarks import suites
from iobench.analysis import windows
from iobench.core import registry
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.records import INVALID, VALID, Record
from iobench.equations import stats
from iobench.run.trial import TrialSettings, run_trial

ATTEMPTS = 3
ARMS = ("torch", "caffe")  # the worker's stack: direct, bridged


def case_of(pipeline: str, image: str, found: Dataset, args: Any) -> Case:
    loader, form = pipeline.split(":")
    step = {"step_s": args.step_ms / 1e3}
    return Case(
        label=f"{pipeline} image={image}",
        loader=loader,
        format=form,
        image=image,
        trainer="emulated" if args.step_ms else "null",
        trainer_options=step if args.step_ms else {},
        location=found.root,
        transform=args.transform,
        batch=args.batch,
        workers=args.workers,
        prefetch=args.prefetch,
        samples=args.samples,
        seed=1,
    )


def measured(case: Case, found: Dataset) -> Record:
    """Run one trial; one that is INVALID (libraries paged in, say) again, as a suite does."""
    stage = "load" if case.trainer == "null" else "train"
    for attempt in range(1, ATTEMPTS + 1):
        trial = Trial("bridge", case, stage, "warm")
        record = run_trial(trial, found, attempt, TrialSettings(limit_s=300))
        if record.status == VALID:
            return record
        print(f"  {record.status}: {'; '.join(record.reasons)}", file=sys.stderr, flush=True)
        if record.status != INVALID:
            break
    raise SystemExit(f"{case.label}: {record.status}: {'; '.join(record.reasons)}")


def pairs_of(pipeline: str, found: Dataset, args: Any) -> list[dict[str, Any]]:
    """Run the pairs; return of each the seconds a sample by arm, and what the bridge noted."""
    cases = {image: case_of(pipeline, image, found, args) for image in ARMS}
    rows = []
    for pair in range(args.pairs):
        row: dict[str, Any] = {}
        for image in ARMS if pair % 4 in (0, 3) else ARMS[::-1]:
            record = measured(cases[image], found)
            row[image] = windows.window(record.ranks[0].steps).seconds_per_sample
            row.update(record.ranks[0].notes.get("handover_s", {}))
        rows.append(row)
        print(
            f"  {pipeline} {pair + 1}/{args.pairs}: {row['caffe'] / row['torch']:.4f}",
            file=sys.stderr,
            flush=True,
        )
    return rows


def judge(pipeline: str, rows: list[dict[str, Any]], batch: int) -> dict[str, Any]:
    found = stats.verdict([r["caffe"] for r in rows], [r["torch"] for r in rows], margin=0.03)
    direct_s = batch * median(r["torch"] for r in rows)
    handover_s = median(r["median"] for r in rows)
    return {
        "pipeline": pipeline,
        "pairs": len(rows),
        "ratio": found.ratio,
        "low": found.interval.low,
        "high": found.interval.high,
        "direct_s": direct_s,
        "bridged_s": batch * median(r["caffe"] for r in rows),
        "handover_s": {
            "median": handover_s,
            "mean": fmean(r["mean"] for r in rows),
            "copy": median(r["copy_median"] for r in rows),
            "wake": median(r["wake_median"] for r in rows),
        },
        "share": handover_s / direct_s,
        "raw": rows,
    }


def main() -> int:
    parser = suites.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--recipe", default="imagenet-like")
    parser.add_argument("--pipelines", nargs="+", default=["torch:lmdb"])
    parser.add_argument("--transform", default="crop224")
    parser.add_argument("--pairs", type=int, default=10, help="at least six for an interval")
    parser.add_argument("--samples", type=int, default=2560)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--step-ms", type=float, default=0.0, help="0: nobody trains")
    args = parser.parse_args()
    reason = registry.unavailable("stacks", "caffe")
    if reason:
        raise SystemExit(reason)
    forms = sorted({p.split(":")[1] for p in args.pipelines} - {"jpeg"})
    found = suites.dataset(args.data, args.recipe, args.samples, forms)
    results = []
    print(
        "pipeline      ratio   95 % interval     batch ms direct  bridged  hand-over  (copy, wake)"
    )
    for pipeline in args.pipelines:
        row = judge(pipeline, pairs_of(pipeline, found, args), args.batch)
        results.append(row)
        took = {name: 1e3 * value for name, value in row["handover_s"].items()}
        print(
            f"{pipeline:12s}  {row['ratio']:.4f}  {row['low']:.4f}..{row['high']:.4f}  "
            f"{1e3 * row['direct_s']:14.2f}  {1e3 * row['bridged_s']:7.2f}  "
            f"{took['median']:9.3f}  ({took['copy']:.3f}, {took['wake']:.3f}), "
            f"{row['share']:.1%} of a direct batch",
            flush=True,
        )
    return suites.finish(args, results, True)


if __name__ == "__main__":
    sys.exit(main())
