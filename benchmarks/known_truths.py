"""Known truths: does the interval of each stall cover what was really done to the pipeline?

Fetch: a loop device throttled below the page cache, at two rates; the truth is arithmetic:
max(0, (bytes that cross the mount / rate - slice) / samples - s), the prep stall is 0.  The slice
is what an idle blk-throttle lets through at once, 0.1 s worth of bytes (throtl_slice in the
kernel's block/blk-throttle.c); a plain reader, timed first, shows it too.
Prep: a sleep d in every decode; the truth is
max(0, (t + d) / W - s) - max(0, t / W - s), the fetch stall is 0; t is from a serial probe.  One d
is masked (truth 0), one has d / W above half the step.

20 repeats each; the 95 % interval must cover the truth, and 0 for the other stall, at least 17
times, with half-widths of at most 5 % of T(cold).
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.suites import dataset, run, studies
from benchmarks.throttle import ThrottledMount, throttled
from iobench.analysis.ranks import probed
from iobench.core.cases import Dataset
from iobench.core.clock import clock
from iobench.core.records import Record
from iobench.equations.stalls import delay_change_s
from iobench.host.page_cache import evict
from iobench.run.trial import TrialSettings

NEEDED, LIMIT = 17, 0.05
SLICE_S = 0.1
_READ = "import sys\nfor path in sys.argv[1:]:\n    open(path, 'rb').read()\n"
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
    Truth("fetch 6 MB/s", "jpeg", "imagenet-like", 160, 16, 0.04875, "rrc224", 6_000_000),
    Truth("fetch 4 MB/s", "jpeg", "imagenet-like", 128, 8, 0.024375, "rrc224", 4_000_000),
    Truth("prep masked", "lmdb", "cifar-like", 192, 16, 0.16, "cifar32", delay_s=0.008),
    Truth("prep 20 ms", "lmdb", "cifar-like", 224, 16, 0.096, "cifar32", delay_s=0.020),
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
def place(truth: Truth, data: Path) -> Iterator[tuple[Dataset, TrialSettings]]:
    """Yield the dataset and the settings under which the truth holds."""
    forms = [] if truth.pipeline == "jpeg" else [truth.pipeline]
    if not truth.read_bps:
        yield (
            dataset(data, truth.recipe, truth.samples, forms),
            TrialSettings(compute_s=0.5, decode_delay_s=truth.delay_s),
        )
        return
    with throttled(1 << 30) as mount:
        found = dataset(mount.path, truth.recipe, truth.samples, forms)
        mount.limit(truth.read_bps)
        calibrate(mount, found, truth)
        yield found, TrialSettings(compute_s=0.5, enter=mount.enter([]))


def calibrate(mount: ThrottledMount, found: Dataset, truth: Truth) -> None:
    """Print how long a plain reader takes on the throttled mount, beside the arithmetic."""
    files = _pictures(found)
    evict(files)
    took = []
    for names in ([], files):
        start = clock()
        subprocess.run(mount.enter([sys.executable, "-c", _READ, *map(str, names)]), check=True)
        took.append(clock() - start)
    whole = crossing(found) / truth.read_bps
    print(
        f"{truth.name}: a plain reader took {took[1] - took[0]:.3f} s; bytes / rate = "
        f"{whole:.3f} s, less the slice {whole - SLICE_S:.3f} s"
    )


def crossing(found: Dataset) -> int:
    """Return the bytes that an epoch moves over a cold mount: every picture once, by whole pages.

    A trial's own count can be higher: what its libraries page in from another disk is in it too.
    """
    return sum(-(-f.stat().st_size // 4096) * 4096 for f in _pictures(found))


def _pictures(found: Dataset) -> list[Path]:
    return sorted(Path(found.root, "jpeg").rglob("*.jpg"))


def expected(truth: Truth, found: Dataset, t_serial: float) -> tuple[float, float]:
    """Return (fetch stall, prep stall) in seconds a sample, by arithmetic."""
    s = truth.step_s / truth.batch
    if truth.delay_s:
        return 0.0, delay_change_s(truth.delay_s, serial=t_serial, workers=WORKERS, step=s)
    took_s = crossing(found) / truth.read_bps - SLICE_S
    return max(0.0, took_s / truth.samples - s), 0.0


def serial_s(truth: Truth, records: list[Record]) -> float:
    """Return t, the loader's serial seconds a sample besides the delay, from the probe trial.

    The probe is delayed too: a sleep ends late, and what follows it finds cold caches.
    """
    probe = next((r for r in records if r.trial.stage == "probe"), None)
    if probe is None:
        return 0.0
    return sum(statistics.fmean(part) for part in probed(probe).values()) - truth.delay_s


def repeat(truth: Truth, found: Dataset, settings: TrialSettings, blocks: int) -> dict[str, Any]:
    """Measure once; return the stalls, their intervals and what they should be."""
    analysis, records = run(document(truth, blocks), found, settings=settings, quiet=True)
    entry = next(iter(analysis["pipelines"]))
    t = serial_s(truth, records)
    fetch, prep = expected(truth, found, t)
    row: dict[str, Any] = {
        "t_serial": t,
        "t_cold": entry["stages"]["train"]["cold"]["seconds_per_sample"]["value"],
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
    with place(truth, args.data) as (found, settings):
        rows = []
        for i in range(args.repeats):
            row = repeat(truth, found, settings, args.blocks)
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
    return {"truth": truth.name, "passed": passed, "summary": summary, "rows": rows}


def line(row: dict[str, Any], name: str) -> str:
    r = row[name]
    return (
        f"| {name} {r['value'] * 1e3:.3f} [{r['low'] * 1e3:.3f}, {r['high'] * 1e3:.3f}] ms, "
        f"truth {r['expected'] * 1e3:.3f} {'in' if r['covers'] else 'OUT'} "
        f"(half-width {r['half_width']:.1%} of T(cold))"
    )


def main() -> int:
    return studies(
        __doc__.splitlines()[0], TRUTHS, study, blocks="cold/warm/compute blocks a repeat"
    )


if __name__ == "__main__":
    sys.exit(main())
