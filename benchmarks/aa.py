"""A runtime against itself: how often does the verdict rule see a difference that is none?

Real: comparisons of 12 pairs in turns, warm ``load``, of a runtime with a second name for it, the
pipelines one after the other.  Wanted: of 40, at most 5 whose 95 % interval excludes 1 and at least
32 EQUIVALENT; the 95 % interval of the ratio over all their pairs within 0.996 to 1.004.
Simulated: 10,000 comparisons resampled from the recorded blocks, in stretches with their drift and
outliers, and as many synthetic ones of each kind of noise, with one look and with a last look that
the time brought early; at most 5.5 % exclude 1.

Every comparison is a suite of its own under --results; the same command goes on with what is there.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import simulate
from benchmarks.suites import arguments, dataset, finish, run
from iobench.analysis.evidence import trial_window
from iobench.core.cases import Dataset
from iobench.core.records import Record
from iobench.equations import stats
from iobench.run import availability
from iobench.run.command import images_for
from iobench.run.trial import TrialSettings
from iobench.spec import load

COMPARISONS, MOST_EXCLUDING, LEAST_EQUIVALENT, MOST_WRONG = 40, 5, 32, 0.055
POOLED = 0.004
PIPELINES = ("lmdb", "jpeg", "hdf5", "dali")
RUNTIMES = ("bare", "docker", "apptainer")
#: Of each run; its start costs 2 s and more.
PAIRS, BATCH, SAMPLES, LOOP_S = 12, 16, 320, 2.5
#: A second look was planned at MOST pairs; the time allowed it at LAST.
LAST, MOST = 15, 20
#: The same runtime under a second name: only the name differs between the arms.
AGAIN = """import dataclasses

from iobench.backends.runtimes import {runtime}

BACKEND = dataclasses.replace({runtime}.BACKEND, summary="{runtime} under a second name")
"""


def document(pipeline: str, seed: int, runtime: str, loop_s: float = LOOP_S) -> dict[str, Any]:
    """Return the spec of one comparison."""
    return {
        "name": "aa",
        "seed": seed,
        "budget": "2h",
        "case": {
            "trainer": "null", "batch": BATCH, "workers": 2, "pipeline": pipeline,
        },
        "matrix": {"runtime": [runtime, "again"]},
        "ladder": {  # the least that a suite has: one run
            "stages": ["load"], "caches": ["warm"], "repeats": 1, "probe": False, "digest": False,
            "only": {"runtime": [runtime]},
        },
        "contrasts": [
            {"over": "runtime", "base": runtime, "caches": ["warm"], "pairs": PAIRS,
             "loop_s": loop_s, "margin": simulate.MARGIN, "probes": 0},
        ],
    }  # fmt: skip


def plug_in(folder: Path, runtime: str) -> None:
    """Put the second name of a runtime where iobench, and its workers, find it."""
    (folder / "runtimes").mkdir(parents=True, exist_ok=True)
    (folder / "runtimes" / "again.py").write_text(AGAIN.format(runtime=runtime))
    os.environ["IOBENCH_PLUGINS"] = str(folder.resolve())


def series(records: Sequence[Record]) -> np.ndarray:
    """Return the log seconds a sample of each block's two runs, in the order they were started."""
    whole: dict[int, dict[int, float]] = {}
    for record in sorted(records, key=lambda r: r.attempt):
        window = trial_window(record) if record.status == "VALID" else None
        if window is not None and record.trial.contrast:
            found = whole.setdefault(record.trial.block, {})
            found[record.trial.position] = math.log(window.seconds_per_sample)
    logs = [[found[0], found[1]] for _, found in sorted(whole.items()) if len(found) == 2]
    centred: np.ndarray = np.reshape(logs, (-1, 2)) - np.median(logs)
    return centred


def simulated(recorded: dict[str, list[np.ndarray]], draws: int, seed: int) -> dict[str, Any]:
    """Return the verdicts on recorded and on synthetic noise without any effect.

    A comparison is drawn from the blocks of one pipeline.  Synthetic runs are correlated by rho
    from one to the next, or the differences within blocks from block to block.
    """
    rng = np.random.default_rng(seed)

    def resample() -> np.ndarray:
        chosen = recorded[sorted(recorded)[rng.integers(len(recorded))]]
        return simulate.pair_up(simulate.stretches(chosen, PAIRS, simulate.STRETCH, rng), rng)

    found: dict[str, Any] = {"recorded": simulate.verdicts(resample, draws, (PAIRS,))}
    for kind, of, rho, sd in (
        ("normal", "runs", 0.0, 0.02), ("normal", "runs", 0.6, 0.02),
        ("normal", "blocks", 0.6, 0.02), ("heavy", "runs", 0.0, 0.05),
        ("heavy", "runs", 0.6, 0.05), ("heavy", "blocks", 0.6, 0.05),
        ("bursts", "runs", 0.0, 0.03), ("drift", "runs", 0.0, 0.02), ("drift", "runs", 0.6, 0.10),
    ):  # fmt: skip

        def draw(kind: str = kind, of: str = of, rho: float = rho, sd: float = sd) -> np.ndarray:
            count = MOST if of == "blocks" else 2 * MOST
            noise = simulate.synthetic(kind, rho, count, sd, rng)
            return (simulate.signed if of == "blocks" else simulate.pair_up)(noise, rng)

        name = f"{kind} sd {sd:.0%}" + (f" rho {rho:g} of {of}" if rho else "")
        found[name] = simulate.verdicts(lambda draw=draw: draw()[:PAIRS], draws, (PAIRS,))
        early = f"{name}, looks at {PAIRS} and {LAST} of {MOST}"
        found[early] = simulate.verdicts(draw, draws, (PAIRS, LAST), MOST)
    return found


def real(
    args: Any, found: Dataset, settings: TrialSettings
) -> tuple[list[dict[str, Any]], dict[str, list[np.ndarray]]]:
    """Run, or go on with, the real comparisons; return a row and the blocks of each."""
    rows: list[dict[str, Any]] = []
    recorded: dict[str, list[np.ndarray]] = {}
    for number in range(1, args.comparisons + 1):
        pipeline = args.pipelines[(number - 1) % len(args.pipelines)]
        folder = args.results / f"{number:02d}-{pipeline}"
        wanted = document(pipeline, number, args.runtime, args.loop_s)
        analysis, records = run(wanted, found, results=folder, settings=settings, quiet=True)
        entry = analysis["contrasts"][0]
        sd = statistics.stdev(math.log(r) for r in entry["ratios"]) if entry["pairs"] > 1 else None
        row = {k: entry[k] for k in ("verdict", "ratio", "pairs", "interval", "note", "ratios")}
        rows.append({"pipeline": pipeline, "sd": sd, "excludes": excludes(entry), **row,
                     "turns": all(r.slices for r in records if r.trial.contrast),
                     "confounders": entry["confounders"]["differences"]})  # fmt: skip
        recorded.setdefault(pipeline, []).append(series(records))
        print(
            f"{number:3} {pipeline:5} {entry['ratio'] or math.nan:.4f}  {entry['pairs']:2} pairs  "
            f"paired sd {sd or math.nan:6.2%}  {entry['verdict']} "
            f"{'excludes 1' if rows[-1]['excludes'] else ''} {entry['note']}",
            flush=True,
        )
    return rows, recorded


def excludes(entry: dict[str, Any]) -> bool:
    """Return whether a comparison's own 95 % interval excludes 1."""
    interval = entry["interval"]
    return interval is not None and not interval["low"] <= 1 <= interval["high"]


def judge(rows: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], bool]:
    """Return what the real comparisons found together, and whether it is as wanted."""
    share = len(rows) / COMPARISONS
    ratios = [r for row in rows for r in row["ratios"]]
    pooled = stats.paired_ratio(ratios, [1.0] * len(ratios))
    result = {
        "excluding": sum(r["excludes"] for r in rows),
        "most_excluding": math.floor(MOST_EXCLUDING * share),
        "equivalent": sum(r["verdict"] == "EQUIVALENT" for r in rows),
        "least_equivalent": math.ceil(LEAST_EQUIVALENT * share),
        "pooled": {"ratio": pooled.value, "low": pooled.low, "high": pooled.high,
                   "pairs": len(ratios)},
        "sd": statistics.median(r["sd"] or math.nan for r in rows),
    }  # fmt: skip
    met = (
        result["excluding"] <= result["most_excluding"]
        and result["equivalent"] >= result["least_equivalent"]
        and pooled.low >= 1 - POOLED
        and pooled.high <= 1 + POOLED
    )
    return result, met


def _print(result: dict[str, Any]) -> None:
    pooled = result["pooled"]
    print(
        f"real: {result['excluding']} intervals exclude 1 (at most {result['most_excluding']}), "
        f"{result['equivalent']} EQUIVALENT (at least {result['least_equivalent']}), "
        f"median paired sd {result['sd']:.2%}\n"
        f"      {pooled['pairs']} pairs together: {pooled['ratio']:.4f} ({pooled['low']:.4f} to "
        f"{pooled['high']:.4f}; wanted: within {1 - POOLED} to {1 + POOLED})"
    )


def main() -> int:
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--runtime", choices=RUNTIMES, default="bare")
    parser.add_argument("--images", type=Path, default=Path("images"), help="of the containers")
    parser.add_argument("--results", type=Path, help="kept; resumed (results/aa-RUNTIME)")
    parser.add_argument("--comparisons", type=int, default=COMPARISONS)
    parser.add_argument("--pipelines", nargs="+", default=list(PIPELINES))
    parser.add_argument("--loop-s", type=float, default=LOOP_S, help="of each run, at least")
    parser.add_argument("--draws", type=int, default=10_000, help="simulated comparisons, each")
    args = parser.parse_args()
    args.results = args.results or Path(f"results/aa-{args.runtime}")
    forms = sorted({p for p in args.pipelines if p in ("lmdb", "hdf5", "tar")})
    plug_in(args.results / "plugins", args.runtime)
    cases = load.expand(load.parse(document("jpeg", 1, args.runtime), where="benchmark"))
    with availability.services_of(cases, args.images, lambda line: print(line, flush=True)):
        settings = TrialSettings(images=images_for(cases, args.images))
        data = dataset(args.data, "imagenet-like", SAMPLES, forms)
        rows, recorded = real(args, data, settings)
    result, passed = judge(rows)
    _print(result)
    found = simulated(recorded, args.draws, seed=1)
    for name, one in found.items():
        print(f"simulated, {name:52} {one['excluded']:6.2%} exclude 1 of {one['draws']:6}, "
              f"{json.dumps(one['verdicts'])}", flush=True)  # fmt: skip
    figures = {
        "runtime": args.runtime,
        "comparisons": rows,
        **result,
        "simulated": found,
        "blocks": {p: [r.tolist() for r in s] for p, s in recorded.items()},
    }
    return finish(
        args, figures, passed and all(f["excluded"] <= MOST_WRONG for f in found.values())
    )


if __name__ == "__main__":
    raise SystemExit(main())
