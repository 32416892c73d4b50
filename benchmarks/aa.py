"""A runtime against itself: how often does the verdict rule see a difference that is none?

Real: comparisons of 12 pairs in turns, warm ``load``, of a runtime with a second name for it, the
pipelines one after the other.  Wanted: of 40, at most 5 whose 95 % interval excludes 1 and at least
32 EQUIVALENT; the 95 % interval of the ratio over all their pairs within 0.996 to 1.004.
Simulated: 10,000 comparisons resampled from the recorded blocks, in stretches with their drift and
outliers, and as many synthetic ones of each kind of noise, with one look and with a last look that
the time brought early; at most 5.5 % exclude 1.

On two nodes (--nodes 2): two hosts (namespaces with addresses of their own and sshd), a rank each,
started by mpirun; the runs of a block one after the other, so they are longer.  Wanted: of 20
comparisons at most 3 that exclude 1 and at least 14 EQUIVALENT.

Every comparison is a suite of its own under --results; the same command goes on with what is there.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import simulate
from benchmarks.suites import arguments, dataset, finish, run
from iobench.analysis.pairs import Pair
from iobench.analysis.results import to_json
from iobench.analysis.suite import analyse
from iobench.core.records import Record
from iobench.equations import stats
from iobench.run import availability, store
from iobench.run.command import images_for
from iobench.run.later_looks import in_pair
from iobench.run.trial import TrialSettings
from iobench.spec import load
from tests.build import clusters
from tests.build.hosts import Hosts

#: Analysis and records of a suite.
Measured = tuple[dict[str, Any], list[Record]]

MOST_WRONG, POOLED = 0.055, 0.004


class Wanted(NamedTuple):
    """Targets of so many comparisons, and what they compare."""

    comparisons: int
    most_excluding: int
    least_equivalent: int
    pipelines: tuple[str, ...]
    loop_s: float  # of each run, at least; its start costs 2 s and more


#: By the number of nodes.
WANTED = {
    1: Wanted(40, 5, 32, ("lmdb", "jpeg", "hdf5", "dali"), 2.5),
    2: Wanted(20, 3, 14, ("lmdb", "jpeg"), 8.0),
}
RUNTIMES = ("bare", "docker", "apptainer")
PAIRS, BATCH, SAMPLES, WORKERS = 12, 16, 320, 2
#: A second look was planned at MOST pairs; the time allowed it at LAST.
LAST, MOST = 15, 20
#: The same runtime under a second name: only the name differs between the arms.
AGAIN = """import dataclasses

from iobench.backends.runtimes import {runtime}

BACKEND = dataclasses.replace({runtime}.BACKEND, summary="{runtime} under a second name")
"""


def document(
    pipeline: str,
    seed: int,
    runtime: str,
    loop_s: float = WANTED[1].loop_s,
    nodes: int = 1,
    workers: int = WORKERS,
) -> dict[str, Any]:
    """Return the spec of one comparison."""
    ranks = {"nodes": nodes, "ranks_per_node": 1, "launcher": "mpirun", "workers": 1}
    if runtime != "bare":
        ranks["scope"] = "rank"
    return {
        "name": "aa",
        "seed": seed,
        "budget": "2h",
        "case": {
            "trainer": "null", "batch": BATCH, "workers": workers, "pipeline": pipeline,
            **(ranks if nodes > 1 else {}),
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
    ran: dict[int, dict[int, Record]] = {}
    for record in sorted(records, key=lambda r: r.attempt):
        if record.status == "VALID" and record.trial.contrast and in_pair(record.trial):
            ran.setdefault(record.trial.block, {})[record.trial.position] = record
    pairs = [
        Pair(block, 0, both[0], both[1]) for block, both in sorted(ran.items()) if len(both) == 2
    ]
    logs = [[math.log(s) for s in pair.seconds_per_sample] for pair in pairs]
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

        def first(draw: Callable[[], np.ndarray] = draw) -> np.ndarray:
            return draw()[:PAIRS]

        name = f"{kind} sd {sd:.0%}" + (f" rho {rho:g} of {of}" if rho else "")
        found[name] = simulate.verdicts(first, draws, (PAIRS,))
        early = f"{name}, looks at {PAIRS} and {LAST} of {MOST}"
        found[early] = simulate.verdicts(draw, draws, (PAIRS, LAST), MOST)
    return found


def on_hosts(cluster: Hosts, images: Path, wanted: Mapping[str, Any], folder: Path) -> Measured:
    """Run one comparison from the first of several hosts, unless it is there whole."""
    if not (folder / "report.html").exists():
        options = ["--hosts", ",".join(cluster.names), "--images", str(images.resolve())]
        words = clusters.words(cluster, wanted, *options, into=folder)
        clusters.run_into(cluster, folder, words)
    kept = store.at(folder)
    return to_json(analyse(kept.plan(), kept.records())), kept.records()


def real(
    args: Any, measure: Callable[[Mapping[str, Any], Path], Measured]
) -> tuple[list[dict[str, Any]], dict[str, list[np.ndarray]]]:
    """Run, or go on with, the real comparisons; return a row and the blocks of each.

    ``measure``: (spec, folder of its results) -> the analysis and the records.
    """
    rows: list[dict[str, Any]] = []
    recorded: dict[str, list[np.ndarray]] = {}
    for number in range(1, args.comparisons + 1):
        pipeline = args.pipelines[(number - 1) % len(args.pipelines)]
        folder = args.results / f"{number:02d}-{pipeline}"
        wanted = document(pipeline, number, args.runtime, args.loop_s, args.nodes, args.workers)
        analysis, records = measure(wanted, folder)
        entry = analysis["contrasts"][0]
        sd = statistics.stdev(math.log(r) for r in entry["ratios"]) if entry["pairs"] > 1 else None
        kept = ("verdict", "ratio", "pairs", "interval", "note", "ratios", "causes")
        row = {k: entry[k] for k in kept}
        rows.append({"pipeline": pipeline, "sd": sd, "excludes": excludes(entry), **row,
                     "turns": all(r.slices for r in records if r.trial.contrast),
                     "confounders": entry["confounders"]["differences"]})  # fmt: skip
        recorded.setdefault(pipeline, []).append(series(records))
        print(
            f"{number:3} {pipeline:5} {entry['ratio'] or math.nan:.4f}  {entry['pairs']:2} pairs  "
            f"paired sd {sd or math.nan:6.2%}  {entry['verdict']} "
            f"{'excludes 1' if rows[-1]['excludes'] else ''} "
            f"{'; '.join(filter(None, [entry['note'], *entry['causes']]))}",
            flush=True,
        )
    return rows, recorded


def excludes(entry: dict[str, Any]) -> bool:
    """Return whether a comparison's own 95 % interval excludes 1."""
    interval = entry["interval"]
    return interval is not None and not interval["low"] <= 1 <= interval["high"]


def judge(rows: Sequence[dict[str, Any]], nodes: int = 1) -> tuple[dict[str, Any], bool]:
    """Return what the real comparisons found together, and whether it is as wanted."""
    wanted = WANTED[nodes]
    share = len(rows) / wanted.comparisons
    ratios = [r for row in rows for r in row["ratios"]]
    pooled = stats.paired_ratio(ratios, [1.0] * len(ratios))
    result = {
        "excluding": sum(r["excludes"] for r in rows),
        "most_excluding": math.floor(wanted.most_excluding * share),
        "equivalent": sum(r["verdict"] == "EQUIVALENT" for r in rows),
        "least_equivalent": math.ceil(wanted.least_equivalent * share),
        "pooled": {"ratio": pooled.value, "low": pooled.low, "high": pooled.high,
                   "pairs": len(ratios)},
        "sd": statistics.median(r["sd"] or math.nan for r in rows),
    }  # fmt: skip
    met = (
        result["excluding"] <= result["most_excluding"]
        and result["equivalent"] >= result["least_equivalent"]
        and (nodes > 1 or 1 - POOLED <= pooled.low <= pooled.high <= 1 + POOLED)
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


@contextlib.contextmanager
def measuring(args: Any) -> Iterator[Callable[[Mapping[str, Any], Path], Measured]]:
    """Yield what measures one comparison, here or on hosts that are there meanwhile."""
    if args.nodes > 1:
        folder = args.data.resolve() / "aa-nodes"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        plug_in(folder / "plugins", args.runtime)
        with clusters.with_data(folder, SAMPLES) as cluster:
            yield functools.partial(on_hosts, cluster, args.images)
        return
    forms = sorted({p for p in args.pipelines if p in ("lmdb", "hdf5", "tar")})
    plug_in(args.results / "plugins", args.runtime)
    cases = load.expand(load.parse(document("jpeg", 1, args.runtime), where="benchmark"))
    with availability.services_of(cases, args.images, lambda line: print(line, flush=True)):
        settings = TrialSettings(images=images_for(cases, args.images))
        data = dataset(args.data, "imagenet-like", SAMPLES, forms)

        def measure(wanted: Mapping[str, Any], folder: Path) -> Measured:
            return run(wanted, data, results=folder, settings=settings, quiet=True)

        yield measure


def main() -> int:
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--runtime", choices=RUNTIMES, default="bare")
    parser.add_argument("--images", type=Path, default=Path("images"), help="of the containers")
    parser.add_argument("--nodes", type=int, choices=sorted(WANTED), default=1)
    parser.add_argument("--results", type=Path, help="kept; resumed (results/aa-RUNTIME)")
    parser.add_argument("--comparisons", type=int)
    parser.add_argument("--pipelines", nargs="+")
    parser.add_argument("--loop-s", type=float, help="of each run, at least")
    parser.add_argument("--workers", type=int, default=WORKERS, help="of the loader, on one node")
    parser.add_argument("--draws", type=int, default=10_000, help="simulated comparisons, each")
    args = parser.parse_args()
    usual = WANTED[args.nodes]
    args.comparisons = args.comparisons or usual.comparisons
    args.pipelines, args.loop_s = args.pipelines or usual.pipelines, args.loop_s or usual.loop_s
    name = f"aa-{args.runtime}" + (f"-{args.nodes}-nodes" if args.nodes > 1 else "")
    args.results = (args.results or Path("results", name)).resolve()
    with measuring(args) as measure:
        rows, recorded = real(args, measure)
    result, passed = judge(rows, args.nodes)
    _print(result)
    found = simulated(recorded, args.draws, seed=1) if args.nodes == 1 else {}
    for name, one in found.items():
        print(f"simulated, {name:52} {one['excluded']:6.2%} exclude 1 of {one['draws']:6}, "
              f"{json.dumps(one['verdicts'])}", flush=True)  # fmt: skip
    figures = {
        "runtime": args.runtime,
        "nodes": args.nodes,
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
