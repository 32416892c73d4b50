"""Bare metal against bare metal: how often does the verdict rule see a difference that is none?

Real: comparisons of up to 30 pairs with looks at 10, 20 and 30, warm ``load``, of the runtime bare
with a second name for it, the pipelines in turn.  Wanted: of 40 at most 5 FASTER or SLOWER, and
EQUIVALENT in at least half of those whose paired sd was 4 % or less.
Simulated: 10,000 comparisons resampled from the recorded runs, in stretches with their drift and
outliers, and as many synthetic ones of each kind of noise; of the former at most 5.5 % wrong.

Every comparison is a suite of its own under --results; the same command goes on with what is there.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import simulate
from benchmarks.suites import arguments, dataset, finish, run
from iobench.analysis.evidence import trial_window
from iobench.core.records import Record

COMPARISONS, MOST_MOVED, QUIET_SD, MOST_WRONG = 40, 5, 0.04, 0.055
PIPELINES = ("lmdb", "jpeg", "hdf5", "dali")
#: A run's measured loop is 0.6 to 2 s here; its start costs three.
SAMPLES = 640
#: The same host under a second name: only the name differs between the arms.
AGAIN = """from iobench.core.members import RuntimeBackend
from iobench.backends.runtimes.bare import Bare

BACKEND = RuntimeBackend(Bare, "bare metal under a second name")
"""


def document(pipeline: str, seed: int) -> dict[str, Any]:
    """Return the spec of one comparison."""
    return {
        "name": "aa",
        "seed": seed,
        "budget": "2h",
        "case": {
            "trainer": "null", "batch": 32, "workers": 2, "pipeline": pipeline, "samples": SAMPLES,
        },
        "matrix": {"runtime": ["bare", "again"]},
        "ladder": {  # the least that a suite has: one run
            "stages": ["load"], "caches": ["warm"], "repeats": 1, "probe": False, "digest": False,
            "only": {"runtime": ["bare"]},
        },
        "contrasts": [
            {"over": "runtime", "base": "bare", "caches": ["warm"], "looks": list(simulate.LOOKS),
             "margin": simulate.MARGIN, "probes": 0},
        ],
    }  # fmt: skip


def plug_in(folder: Path) -> None:
    """Put the second name of bare where iobench, and its workers, find it."""
    (folder / "runtimes").mkdir(parents=True, exist_ok=True)
    (folder / "runtimes" / "again.py").write_text(AGAIN)
    os.environ["IOBENCH_PLUGINS"] = str(folder.resolve())


def series(records: list[Record]) -> np.ndarray:
    """Return the log seconds a sample of the comparison's runs, in the order they ran."""
    ordered = sorted((r for r in records if r.status == "VALID"), key=lambda r: r.started)
    windows = [trial_window(r) for r in ordered]
    logs = np.log([w.seconds_per_sample for w in windows if w is not None])
    centred: np.ndarray = logs - np.median(logs)
    return centred


def simulated(recorded: dict[str, list[np.ndarray]], draws: int, seed: int) -> dict[str, Any]:
    """Return the verdicts on recorded and on synthetic noise without any effect.

    A comparison is drawn from the runs of one pipeline.
    """
    rng = np.random.default_rng(seed)
    runs, length = 2 * simulate.LOOKS[-1], 2 * simulate.STRETCH

    def resample() -> np.ndarray:
        series = recorded[sorted(recorded)[rng.integers(len(recorded))]]
        return simulate.pair_up(simulate.stretches(series, runs, length, rng), rng)

    found: dict[str, Any] = {"recorded": simulate.verdicts(resample, draws)}
    for kind, rho, sd in (
        ("normal", 0.0, 0.02), ("normal", 0.6, 0.05), ("heavy", 0.0, 0.05), ("heavy", 0.6, 0.10),
        ("bursts", 0.0, 0.03), ("drift", 0.0, 0.02), ("drift", 0.6, 0.10),
    ):  # fmt: skip

        def draw(kind: str = kind, rho: float = rho, sd: float = sd) -> np.ndarray:
            return simulate.pair_up(simulate.synthetic(kind, rho, runs, sd, rng), rng)

        found[f"{kind} rho {rho:g} sd {sd:.0%}"] = simulate.verdicts(draw, draws // 10)
    return found


def real(args: Any, found: Any) -> tuple[list[dict[str, Any]], dict[str, list[np.ndarray]]]:
    """Run, or go on with, the real comparisons; return a row and the runs of each."""
    rows: list[dict[str, Any]] = []
    recorded: dict[str, list[np.ndarray]] = {}
    for number in range(1, args.comparisons + 1):
        pipeline = args.pipelines[(number - 1) % len(args.pipelines)]
        folder = args.results / f"{number:02d}-{pipeline}"
        analysis, records = run(document(pipeline, number), found, results=folder, quiet=True)
        entry = analysis["contrasts"][0]
        sd = statistics.stdev(math.log(r) for r in entry["ratios"]) if entry["pairs"] > 1 else None
        row = {k: entry[k] for k in ("verdict", "ratio", "pairs", "simultaneous", "note")}
        rows.append({"pipeline": pipeline, "sd": sd, **row,
                     "confounders": entry["confounders"]["differences"]})  # fmt: skip
        recorded.setdefault(pipeline, []).append(series(records))
        print(
            f"{number:3} {pipeline:5} {entry['ratio'] or math.nan:.3f}  {entry['pairs']:2} pairs  "
            f"paired sd {sd or math.nan:6.2%}  {entry['verdict']} {entry['note']}",
            flush=True,
        )
    return rows, recorded


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("results/aa"), help="kept; resumed")
    parser.add_argument("--comparisons", type=int, default=COMPARISONS)
    parser.add_argument("--pipelines", nargs="+", default=list(PIPELINES))
    parser.add_argument("--draws", type=int, default=10_000, help="simulated comparisons")
    args = parser.parse_args()
    forms = sorted({p for p in args.pipelines if p in ("lmdb", "hdf5", "tar")})
    plug_in(args.results / "plugins")
    rows, recorded = real(args, dataset(args.data, "imagenet-like", SAMPLES, forms))
    moved = sum(r["verdict"] in simulate.MOVED for r in rows)
    quiet = [r for r in rows if r["sd"] is not None and r["sd"] <= QUIET_SD]
    equal = sum(r["verdict"] == "EQUIVALENT" for r in quiet)
    most = MOST_MOVED * args.comparisons // COMPARISONS
    print(f"real: {moved} of {len(rows)} called FASTER or SLOWER (at most {most})")
    print(f"      {equal} of {len(quiet)} quiet ones (paired sd <= 4 %) EQUIVALENT (at least half)")
    found = simulated(recorded, args.draws, seed=1)
    for name, result in found.items():
        print(f"simulated, {name:22} {result['moved']:6.2%} wrong of {result['draws']:6}, "
              f"{json.dumps(result['verdicts'])}")  # fmt: skip
    passed = moved <= most and 2 * equal >= len(quiet) and bool(quiet)
    passed = passed and found["recorded"]["moved"] <= MOST_WRONG
    figures = {
        "comparisons": rows,
        "simulated": found,
        "runs": {p: [list(r) for r in s] for p, s in recorded.items()},
    }
    return finish(args, figures, passed)


if __name__ == "__main__":
    raise SystemExit(main())
