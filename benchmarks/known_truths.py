"""Known truths: does the interval of each stall cover what was really done to the pipeline?

Fetch: a loop device throttled below the page cache, at two rates; the truth is arithmetic:
max(0, bytes that cross the mount / rate - T(warm)'s own floor), the prep stall is 0.
Prep: a sleep d in every decode; the truth is METHOD section 4's
max(0, (t + d) / W - s) - max(0, t / W - s), the fetch stall is 0.  One d is masked (truth 0), one
has d / W above half the step.

20 repeats each; the 95 % interval must cover the truth, and 0 for the other stall, at least 17
times, with half-widths of at most 5 % of T(cold).
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.suites import arguments, dataset, finish, run
from benchmarks.throttle import throttled
from iobench.launch import Settings
from iobench.model import Dataset, Record
from iobench.stalls import delay_change_s

NEEDED, LIMIT = 17, 0.05
WORKERS = 2


@dataclasses.dataclass(frozen=True)
class Truth:
    """One thing done to a pipeline on purpose."""

    name: str
    pipeline: str
    recipe: str
    samples: int
    batch: int
    step_s: float
    transform: str
    read_bps: int = 0
    delay_s: float = 0.0


TRUTHS = (
    Truth(
        "fetch 20 MB/s", "jpeg", "imagenet-like", 320, 16, 0.04875, "rrc224", read_bps=20_000_000
    ),
    Truth(
        "fetch 12 MB/s", "jpeg", "imagenet-like", 192, 8, 0.024375, "rrc224", read_bps=12_000_000
    ),
    Truth("prep masked", "lmdb", "cifar-like", 256, 8, 0.08, "cifar32", delay_s=0.008),
    Truth("prep 20 ms", "lmdb", "cifar-like", 192, 8, 0.048, "cifar32", delay_s=0.020),
)


def document(truth: Truth, repeats: int) -> dict[str, Any]:
    """Return the spec of one repeat: train cold and warm, compute."""
    return {
        "name": "known-truth",
        "budget": "10m",
        "compute_s": 0.5,
        "case": {
            "trainer": "emulated",
            "trainer_options": {"step_s": truth.step_s},
            "transform": truth.transform,
            "batch": truth.batch,
            "workers": WORKERS,
        },
        "matrix": {"pipeline": [truth.pipeline]},
        "ladder": {
            "stages": ["compute", "train"],
            "repeats": repeats,
            "digest": False,
            "probe": truth.delay_s > 0,
        },
    }


@contextlib.contextmanager
def place(truth: Truth, data: Path) -> Iterator[tuple[Dataset, Settings]]:
    """Yield the dataset and the settings under which the truth holds."""
    forms = [] if truth.pipeline == "jpeg" else [truth.pipeline]
    if not truth.read_bps:
        yield (
            dataset(data, truth.recipe, truth.samples, forms),
            Settings(compute_s=0.5, decode_delay_s=truth.delay_s),
        )
        return
    with throttled(1 << 30) as mount:
        found = dataset(mount.path, truth.recipe, truth.samples, forms)
        mount.limit(truth.read_bps)
        yield found, Settings(compute_s=0.5, enter=mount.enter([]))


def expected(truth: Truth, records: list[Record], t_serial: float) -> tuple[float, float]:
    """Return (fetch stall, prep stall) in seconds a sample, by arithmetic."""
    s = truth.step_s / truth.batch
    if truth.delay_s:
        return 0.0, delay_change_s(truth.delay_s, serial=t_serial, workers=WORKERS, step=s)
    cold = [r for r in records if r.trial.cache == "cold" and r.trial.stage == "train"]
    per_sample = [
        sum(rank.steps.bytes[rank.steps.warmup :])
        / sum(rank.steps.samples[rank.steps.warmup :])
        * storage_share(r)
        for r in cold
        for rank in r.ranks
    ]
    return max(0.0, statistics.fmean(per_sample) / truth.read_bps - s), 0.0


def storage_share(record: Record) -> float:
    """Return bytes that crossed the mount / bytes needed: whole pages, and read-ahead."""
    assert record.cache.bytes_storage is not None
    return record.cache.bytes_storage / record.cache.bytes_needed


def serial_s(truth: Truth, data: Path) -> float:
    """Return t, the loader's serial seconds a sample without the delay, from a probe trial."""
    if not truth.delay_s:
        return 0.0
    plain = dataclasses.replace(truth, delay_s=0.0)
    found = dataset(data, plain.recipe, plain.samples, [plain.pipeline])
    spec = document(truth, 1)
    spec["ladder"]["stages"] = ["compute"]
    _, records = run(spec, found, quiet=True)
    probe = next(r for r in records if r.trial.stage == "probe").ranks[0].probe
    return sum(statistics.fmean(v) for v in probe.values())


def repeat(
    truth: Truth, found: Dataset, settings: Settings, blocks: int, t: float
) -> dict[str, Any]:
    """Measure once; return the stalls, their intervals and what they should be."""
    analysis, records = run(document(truth, blocks), found, settings=settings, quiet=True)
    entry = next(iter(analysis["pipelines"]))
    fetch, prep = expected(truth, records, t)
    row: dict[str, Any] = {
        "t_cold": entry["stages"]["train"]["cold"]["seconds_per_sample"]["value"]
    }
    for name, truth_s in (("fetch", fetch), ("prep", prep)):
        stall = entry[f"{name}_stall_s"]
        row[name] = {
            "expected": truth_s,
            "value": stall["value"],
            "low": stall["low"],
            "high": stall["high"],
            "covers": stall["low"] <= truth_s <= stall["high"],
            "half_width": (stall["high"] - stall["low"]) / 2 / row["t_cold"],
        }
    return row


def study(truth: Truth, args: Any) -> dict[str, Any]:
    t = serial_s(truth, args.data)
    with place(truth, args.data) as (found, settings):
        rows = []
        for i in range(args.repeats):
            row = repeat(truth, found, settings, args.blocks, t)
            rows.append(row)
            print(
                f"{truth.name} {i + 1}/{args.repeats}", *(line(row, k) for k in ("fetch", "prep"))
            )
            sys.stdout.flush()
    needed = NEEDED * args.repeats / 20
    summary = {
        name: {
            "covered": sum(r[name]["covers"] for r in rows),
            "of": len(rows),
            "expected": statistics.fmean(r[name]["expected"] for r in rows),
            "mean": statistics.fmean(r[name]["value"] for r in rows),
            "half_width_max": max(r[name]["half_width"] for r in rows),
        }
        for name in ("fetch", "prep")
    }
    passed = all(v["covered"] >= needed and v["half_width_max"] <= LIMIT for v in summary.values())
    print(truth.name, "PASS" if passed else "MISS", summary, flush=True)
    return {"truth": truth.name, "passed": passed, "summary": summary, "rows": rows, "t_serial": t}


def line(row: dict[str, Any], name: str) -> str:
    r = row[name]
    return (
        f"| {name} {r['value'] * 1e3:.3f} [{r['low'] * 1e3:.3f}, {r['high'] * 1e3:.3f}] ms, "
        f"truth {r['expected'] * 1e3:.3f} {'in' if r['covers'] else 'OUT'} "
        f"(half-width {r['half_width']:.1%} of T(cold))"
    )


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=4, help="cold/warm/compute blocks a repeat")
    parser.add_argument("--only", default="", help="names that contain this")
    args = parser.parse_args()
    figures = [study(t, args) for t in TRUTHS if args.only in t.name]
    return finish(args, figures, all(f["passed"] for f in figures))


if __name__ == "__main__":
    sys.exit(main())
