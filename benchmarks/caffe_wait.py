"""Is the time that a loop waits for Caffe's data layer max(0, reader - compute)?

The reader is one thread with a queue, so in a steady state a loop whose step takes s seconds a
sample waits for what the reader takes longer: w = max(0, r - s).  s is an emulated trainer's and
exact; r is measured by the `load` rung, where nobody trains, and w by `train`, in pairs, back to
back.  The reader is slow in two ways: a device throttled below the page cache, read cold; and
photos of three megapixels, whose decoding takes long, warm.  Each once with steps shorter than the
reader's, once with longer ones (then nothing is to wait for).  Beside the throttled reader stands
arithmetic: r lies between bytes / rate and that plus the decoding.

20 repeats each; the 95 % interval of w - max(0, r - s) must hold 0, to within the hand-over of a
batch (0.5 ms at most, where others want the cores too), at least 17 times, with half-widths of at
most 5 % of the time a sample.  Where an interval is wider, the repeat takes as many pairs again, up
to four times: a stop by the width alone, which makes intervals rather too narrow, never too wide.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.known_truths import LIMIT, NEEDED, SLICE_S
from benchmarks.suites import dataset, run, studies
from benchmarks.throttle import throttled
from iobench.analysis import evidence
from iobench.core.cases import Dataset
from iobench.core.records import Record
from iobench.equations import stats
from iobench.run.trial import TrialSettings

#: Seconds that handing a batch over may take, where nothing is to wait for.
HANDOVER_S = 500e-6
#: Times the pairs of a repeat that a noisy machine may take.
MOST = 4


@dataclasses.dataclass(frozen=True)
class Truth:
    """One slow reader beside one step time."""

    name: str
    pipeline: str
    recipe: str
    samples: int
    batch: int
    step_s: float
    read_bps: int = 0

    @property
    def cache(self) -> str:
        return "cold" if self.read_bps else "warm"


TRUTHS = (
    Truth("device 5 MB/s, short steps", "native:jpeg", "imagenet-like", 128, 4, 0.030, 5_000_000),
    Truth("device 5 MB/s, long steps", "native:jpeg", "imagenet-like", 96, 4, 0.140, 5_000_000),
    Truth("decoding, short steps", "native:lmdb", "large", 48, 2, 0.020),
    Truth("decoding, long steps", "native:lmdb", "large", 48, 2, 0.200),
)


def document(truth: Truth, blocks: int) -> dict[str, Any]:
    """Return the spec of one repeat: load and train in one cache state."""
    return {
        "name": "caffe-wait",
        "budget": "30m",
        "case": {
            "trainer": "emulated",
            "trainer_options": {"step_s": truth.step_s},
            "transform": "crop224",
            "order": "stored",
            "batch": truth.batch,
            "prefetch": 2,
        },
        "matrix": {"pipeline": [truth.pipeline]},
        "ladder": {
            "stages": ["load", "train"],
            "caches": [truth.cache],
            "repeats": blocks,
            "digest": False,
            "probe": False,
        },
    }


@contextlib.contextmanager
def place(truth: Truth, data: Path) -> Iterator[tuple[Dataset, TrialSettings]]:
    """Yield the dataset and the settings under which the reader is slow."""
    form = truth.pipeline.partition(":")[2]
    forms = [] if form == "jpeg" else [form]
    if not truth.read_bps:
        yield dataset(data, truth.recipe, truth.samples, forms), TrialSettings()
        return
    with throttled(1 << 30) as mount:
        found = dataset(mount.path, truth.recipe, truth.samples, forms)
        mount.limit(truth.read_bps)
        yield found, TrialSettings(enter=mount.enter([]))


def by_block(records: Sequence[Record], stage: str) -> dict[int, Any]:
    """Return block -> the window of that rung."""
    found = {}
    for record in records:
        window = evidence.trial_window(record)
        if record.trial.stage == stage and evidence.enters(record) and window is not None:
            found[record.trial.block] = window
    return found


@dataclasses.dataclass(frozen=True)
class Pair:
    """Seconds a sample of one `load` and the `train` beside it."""

    reader_s: float
    wait_s: float
    train_s: float
    storage_bytes: int
    samples: int


def pairs(truth: Truth, found: Dataset, settings: TrialSettings, blocks: int) -> list[Pair]:
    """Measure ``blocks`` pairs back to back; raise SystemExit where fewer than two came of it."""
    _, records = run(document(truth, blocks), found, settings=settings, quiet=True)
    loads, trains = by_block(records, "load"), by_block(records, "train")
    crossed = {
        r.trial.block: r.cache.bytes_storage or 0 for r in records if r.trial.stage == "load"
    }
    both = sorted(set(loads) & set(trains))
    if len(both) < 2:
        raise SystemExit(f"{truth.name}: {[(r.trial.stage, r.reasons) for r in records]}")
    return [
        Pair(
            loads[b].wall_s / loads[b].samples,
            trains[b].wait_s / trains[b].samples,
            trains[b].wall_s / trains[b].samples,
            crossed[b],
            loads[b].samples,
        )
        for b in both
    ]


def judged(truth: Truth, measured: Sequence[Pair]) -> dict[str, Any]:
    """Return what was waited, what should have been, and the interval of the gap."""
    due = [max(0.0, p.reader_s - truth.step_s / truth.batch) for p in measured]
    interval = stats.t_interval([p.wait_s - d for p, d in zip(measured, due, strict=True)])
    slack = HANDOVER_S / truth.batch
    crossed = statistics.fmean(p.storage_bytes for p in measured)
    return {
        "pairs": len(measured),
        "reader_s": statistics.fmean(p.reader_s for p in measured),
        "wait_s": statistics.fmean(p.wait_s for p in measured),
        "expected_s": statistics.fmean(due),
        "gap_s": interval.value,
        "low": interval.low,
        "high": interval.high,
        "covers": interval.low - slack <= 0.0 <= interval.high + slack,
        "half_width": (interval.high - interval.low)
        / 2
        / statistics.fmean(p.train_s for p in measured),
        "device_s": (
            (crossed / truth.read_bps - SLICE_S) / measured[0].samples if truth.read_bps else None
        ),
    }


def repeat(truth: Truth, found: Dataset, settings: TrialSettings, blocks: int) -> dict[str, Any]:
    """Measure pairs, and as many again where the interval is still too wide; judge them all."""
    measured: list[Pair] = []
    while True:
        measured += pairs(truth, found, settings, blocks)
        row = judged(truth, measured)
        if row["half_width"] <= LIMIT or len(measured) >= MOST * blocks:
            return row


def study(truth: Truth, args: Any) -> dict[str, Any]:
    rows = []
    with place(truth, args.data) as (found, settings):
        for i in range(args.repeats):
            # a CPU is noisier than a throttle
            row = repeat(truth, found, settings, args.blocks * (1 if truth.read_bps else 2))
            rows.append(row)
            print(f"{truth.name} {i + 1}/{args.repeats} {line(row)}", flush=True)
    needed = NEEDED * args.repeats / 20
    summary = {
        "covered": sum(r["covers"] for r in rows),
        "of": len(rows),
        "wait_s": statistics.fmean(r["wait_s"] for r in rows),
        "expected_s": statistics.fmean(r["expected_s"] for r in rows),
        "half_width_max": max(r["half_width"] for r in rows),
        "pairs_max": max(r["pairs"] for r in rows),
    }
    passed = summary["covered"] >= needed and summary["half_width_max"] <= LIMIT
    print(truth.name, "PASS" if passed else "MISS", summary, flush=True)
    return {"truth": truth.name, "passed": passed, "summary": summary, "rows": rows}


def line(row: dict[str, Any]) -> str:
    device = "" if row["device_s"] is None else f", the device alone {row['device_s'] * 1e3:.3f}"
    return (
        f"| reader {row['reader_s'] * 1e3:.3f} ms a sample{device}; waited "
        f"{row['wait_s'] * 1e3:.3f}, expected {row['expected_s'] * 1e3:.3f}; gap "
        f"[{row['low'] * 1e3:.3f}, {row['high'] * 1e3:.3f}] "
        f"{'holds' if row['covers'] else 'MISSES'} 0 (half-width {row['half_width']:.1%}, "
        f"{row['pairs']} pairs)"
    )


def main() -> int:
    return studies(__doc__.splitlines()[0], TRUTHS, study, blocks="load/train pairs a repeat")


if __name__ == "__main__":
    sys.exit(main())
