"""Is iobench's ``load`` the loop a user would write?  Ratio of the two, warm, in interleaved pairs.

Arm: ``python -m iobench.worker``, the process that every trial runs.  Base: handwritten.py, which
imports nothing from iobench.  Same library, settings, samples, order and window rule.
Target: the 90 % interval of seconds per sample, arm / base, inside 0.97..1.03.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import suites
from iobench.analysis import windows
from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.order import sample_order
from iobench.equations import stats
from iobench.host import page_cache
from iobench.run.worker_process import TrialSettings, worker_of
from iobench.worker import loop

PIPELINES = ("torch:lmdb", "torch:hdf5", "torch:jpeg", "torch:tar", "dali:jpeg")
HANDWRITTEN = Path(__file__).with_name("handwritten.py")
MARGIN = 0.03


@dataclasses.dataclass(frozen=True)
class Pair:
    """One pair of fresh processes: seconds per sample of each side."""

    iobench: float
    handwritten: float


def case_of(pipeline: str, found: Dataset, args: Any) -> Case:
    loader, format_ = pipeline.split(":")
    return Case(
        format=format_,
        loader=loader,
        trainer="null",
        location=found.root,
        batch=args.batch,
        workers=args.workers,
        prefetch=args.prefetch,
        samples=args.samples,
        seed=1,
    )


def warmup_of(case: Case, steps: int) -> int:
    queued = case.prefetch * (case.workers if case.loader == "torch" else 1)
    return loop.warmup_steps(queue_batches=queued, workers=case.workers, steps=steps)


def by_iobench(case: Case, found: Dataset, folder: Path) -> float:
    """Run one worker as the scheduler does; the cache is warm, so ``Go`` is sent at once."""
    trial = Trial(id="fidelity", case=case, stage="load", cache="warm")
    with (
        tempfile.TemporaryDirectory(dir=folder) as work,
        worker_of(trial, found, Path(work), TrialSettings(limit_s=600.0), None) as worker,
    ):
        worker.wait_ready()
        worker.release()
        (result,) = worker.results()
    if result.error:
        raise SystemExit(f"{case.pipeline}: {result.error}")
    steps = result.steps
    expected = warmup_of(case, len(steps.done_s))
    if steps.warmup != expected:
        raise SystemExit(f"{case.pipeline}: warm-up {steps.warmup}, by hand {expected}")
    measured = windows.window(steps)
    return measured.wall_s / measured.samples


def by_hand(case: Case, found: Dataset, folder: Path) -> float:
    ids = sample_order(
        found.samples, case.order, seed=case.seed, batch=case.batch, limit=case.samples
    )
    np.save(folder / "ids.npy", ids)
    task = {
        "loader": case.loader,
        "format": case.format,
        "root": str(datasets.form_root(found, case.stored_form)),
        "index": str(Path(found.root, datasets.INDEX)),
        "ids": str(folder / "ids.npy"),
        "batch": case.batch,
        "workers": case.workers,
        "prefetch": case.prefetch,
        "warmup": warmup_of(case, len(ids) // case.batch),
    }
    path = folder / "hand.json"
    path.write_text(json.dumps(task))
    done = subprocess.run(
        [sys.executable, str(HANDWRITTEN), str(path)], check=True, capture_output=True, text=True
    )
    return float(json.loads(done.stdout)["seconds_per_sample"])


def pairs_of(case: Case, found: Dataset, pairs: int, folder: Path) -> list[Pair]:
    """Run ``pairs`` pairs, their order ABBA; every file is put into the page cache before each."""
    files = (
        registry.load("formats", case.format)
        .make()
        .files(found, datasets.form_root(found, case.stored_form))
    )
    out = []
    for pair in range(pairs):
        seconds = {}
        sides = [by_iobench, by_hand]
        for side in sides if pair % 4 in (0, 3) else sides[::-1]:
            page_cache.warm(files)
            seconds[side] = side(case, found, folder)
        out.append(Pair(seconds[by_iobench], seconds[by_hand]))
        ratio = seconds[by_iobench] / seconds[by_hand]
        print(f"  {case.pipeline} {pair + 1}/{pairs}: {ratio:.3f}", file=sys.stderr, flush=True)
    return out


def judge(pipeline: str, pairs: list[Pair]) -> dict[str, Any]:
    """Return the ratio, its 90 % interval, and whether that lies inside the margin."""
    arm, base = [p.iobench for p in pairs], [p.handwritten for p in pairs]
    found = stats.verdict(arm, base, margin=MARGIN)
    inside = found.interval90.low >= 1 - MARGIN and found.interval90.high <= 1 + MARGIN
    return {
        "pipeline": pipeline,
        "pairs": len(pairs),
        "ratio": found.ratio,
        "low90": found.interval90.low,
        "high90": found.interval90.high,
        "inside": inside,
        "smallest_effect": found.smallest_effect,
        "iobench_samples_per_s": 1 / float(np.median(arm)),
        "handwritten_samples_per_s": 1 / float(np.median(base)),
        "raw": [dataclasses.asdict(p) for p in pairs],
    }


def main() -> int:
    parser = suites.arguments(__doc__ or "")
    parser.add_argument("--recipe", default="imagenet-like")
    parser.add_argument("--pipelines", nargs="+", default=PIPELINES, choices=PIPELINES)
    parser.add_argument("--pairs", type=int, default=20, help="at least 20 for the record")
    parser.add_argument("--samples", type=int, default=2560)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--prefetch", type=int, default=2)
    args = parser.parse_args()
    forms = sorted({p.split(":")[1] for p in args.pipelines} - {"jpeg"})
    found = suites.dataset(args.data, args.recipe, args.samples, forms)
    rows = []
    print("pipeline      ratio   90 % interval     inside 0.97..1.03  resolvable  samples/s (hand)")
    for pipeline in args.pipelines:
        case = case_of(pipeline, found, args)
        with tempfile.TemporaryDirectory(prefix="iobench-fidelity-") as folder:
            row = judge(pipeline, pairs_of(case, found, args.pairs, Path(folder)))
        rows.append(row)
        print(
            f"{pipeline:12s}  {row['ratio']:.4f}  {row['low90']:.4f}..{row['high90']:.4f}  "
            f"{'yes' if row['inside'] else 'NO':>17s}  {row['smallest_effect']:9.1%}  "
            f"{row['iobench_samples_per_s']:.0f} ({row['handwritten_samples_per_s']:.0f})",
            flush=True,
        )
    return suites.finish(args, rows, all(row["inside"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
