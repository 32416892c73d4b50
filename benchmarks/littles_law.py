"""Threads inside workers on a mount where each read takes long: as Little's law foretells?

A FUSE mount waits 10 ms at each read; a sample is one read.  First the latency of one read is
measured, alone, and what each arm reads without the delay: samples/s = reads at a time / latency,
at most that.  The predictions are written to ``--predictions``; only then the arms are measured:
workers alone, and threads inside them.  Target: each prediction within 15 % of what is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import suites
from benchmarks.delayed_mount import delayed
from iobench.core import dataset as datasets
from iobench.core.cases import Dataset
from iobench.core.clock import clock

#: Workers, and threads in each.
ARMS = ((2, 1), (2, 4), (8, 1), (4, 2))
BATCH, PREFETCH = 16, 2
TARGET = 0.15
READS = 50


def name_of(workers: int, threads: int) -> str:
    return f"{workers} workers x {threads} threads"


def spec(repeats: int) -> dict[str, Any]:
    cases = [
        {"name": name_of(workers, threads), "pipeline": "torch:jpeg", "workers": workers,
         "loader_options": {"threads": threads} if threads > 1 else {}}
        for workers, threads in ARMS
    ]  # fmt: skip
    return {
        "name": "littles-law", "budget": "1h",
        "case": {"trainer": "null", "batch": BATCH, "prefetch": PREFETCH},
        "cases": cases,
        "ladder": {"stages": ["read"], "caches": ["cold"], "repeats": repeats, "probe": False,
                   "digest": False},
    }  # fmt: skip


@contextlib.contextmanager
def mounted(found: Dataset, delay_s: float) -> Iterator[Dataset]:
    """Yield a dataset as a fresh mount shows it: nothing of it is in the page cache."""
    with (
        tempfile.TemporaryDirectory(prefix="iobench-delayed-") as mount,
        delayed(Path(found.root), Path(mount), delay_s),
    ):
        yield datasets.locate(Path(mount))


def latency_s(found: Dataset) -> float:
    """Return the median seconds in which a file is opened and read, one after the other."""
    times = []
    for name in datasets.load_index(found).files[:READS]:
        start = clock()
        fd = os.open(Path(found.jpeg_root, name), os.O_RDONLY)
        os.read(fd, os.fstat(fd).st_size)
        os.close(fd)
        times.append(clock() - start)
    return median(times)


def rates(found: Dataset, repeats: int) -> dict[str, Any]:
    """Return arm -> samples/s of reading, with its limits."""
    with tempfile.TemporaryDirectory(prefix="iobench-littles-law-") as results:
        analysis, _ = suites.run(spec(repeats), found, results=Path(results), quiet=True)
    return {
        entry["case"]: entry["stages"]["read"]["cold"]["samples_per_s"]
        for entry in analysis["pipelines"]
    }


def foretold(found: Dataset, delay_s: float) -> tuple[float, dict[str, float]]:
    """Return the latency of a read, and arm -> samples/s."""
    with mounted(found, 0.0) as data:
        most = rates(data, 1)
    with mounted(found, delay_s) as data:
        latency = latency_s(data)
    return latency, {
        name_of(workers, threads): min(
            workers * threads / latency, most[name_of(workers, threads)]["value"]
        )
        for workers, threads in ARMS
    }


def limits(rate: dict[str, Any]) -> str:
    """Return a rate's limits in words; of one usable trial there are none, of two perhaps one."""
    if rate["low"] is None:
        return "no limits"
    return f"{rate['low']:.0f} " + ("or more" if rate["high"] is None else f"to {rate['high']:.0f}")


def main() -> int:
    parser = suites.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--samples", type=int, default=1024, help="8 x 16 x n: whole rounds")
    parser.add_argument("--delay-ms", type=float, default=10.0)
    parser.add_argument("--predictions", type=Path, default=Path("littles-law.json"),
                        help="written before anything of it is measured")  # fmt: skip
    args = parser.parse_args()
    stored = suites.dataset(args.data, "smoke", args.samples, [])
    delay_s = args.delay_ms / 1e3
    latency, wanted = foretold(stored, delay_s)
    args.predictions.write_text(json.dumps({"latency_s": latency, "samples_per_s": wanted}))
    print(f"one read: {1e3 * latency:.2f} ms")
    with mounted(stored, delay_s) as data:
        found = rates(data, args.repeats)
    rows, alone = [], found[name_of(*ARMS[0])]["value"]
    for name, expected in wanted.items():
        seen = found[name]
        error = expected / seen["value"] - 1
        print(f"{name:22} predicted {expected:6.0f} measured {seen['value']:6.0f} "
              f"({limits(seen)}) samples/s: {error:+.1%}; "
              f"{seen['value'] / alone:.2f} x {name_of(*ARMS[0])}", flush=True)  # fmt: skip
        rows.append({"arm": name, "predicted": expected, "measured": seen, "error": error})
    return suites.finish(args, rows, all(abs(row["error"]) <= TARGET for row in rows))


if __name__ == "__main__":
    sys.exit(main())
