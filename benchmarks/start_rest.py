"""Is Apptainer faster than bare metal, and is the rest of the cores during its start the cause?

Loops one after the other, as an earlier method measured them and found Apptainer 1 to 3 % faster:
one epoch each, 0.3 s; ``--loop-s`` is of arms in turns.
In each block: bare metal; bare metal that rests as long as a container's start takes before it
starts (the cause added); Apptainer; Apptainer whose start finds no rest, because every core works
meanwhile (the cause switched off); the image's files without a container.  The same arms but the
working one also run in turns, in which no arm starts from a rest.

The rest is a cause only when adding it to bare metal makes it faster and taking it from Apptainer
makes that slower, each by an interval of 95 % that excludes 1.  No target: it reports what is so.
Every pipeline is a suite of its own under --results; the same command goes on with what is there.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from benchmarks.suites import arguments, dataset, finish, run
from iobench.core.cases import Dataset
from iobench.run import availability
from iobench.run.command import images_for
from iobench.run.trial import TrialSettings
from iobench.spec import load

PIPELINES = ("lmdb", "jpeg", "dali")
PAIRS, BATCH, SAMPLES, LOOP_S = 20, 16, 320, 3.0
REST_S = 1.0  # of Apptainer's start over bare metal's
ADDED, REMOVED, EFFECT = "rested / bare", "unrested / apptainer", "apptainer / bare"
_RUNTIME = """import dataclasses

from iobench.backends.runtimes import {module} as original

SCRIPT = "{script}"


class Started(original.{name}):
    def argv(self, command, start):
        return ["/bin/sh", "-c", SCRIPT, "sh", *super().argv(command, start)]


BACKEND = dataclasses.replace(original.BACKEND, make=Started, summary="{summary}")
"""
#: Name of a runtime: its module, its class, what it does before it starts the command, in words.
STARTS = {
    "rested": ("bare", "Bare", "sleep {rest_s}", "bare metal after a rest"),
    "unrested": ("apptainer", "Apptainer",
                 "for core in $(seq $(nproc)); do timeout {rest_s} sh -c 'while :; do :; done' & "
                 "done", "Apptainer started beside work on every core"),
}  # fmt: skip


def plug_in(folder: Path, rest_s: float) -> None:
    """Put the runtimes whose start rests, or finds no rest, where iobench finds them."""
    (folder / "runtimes").mkdir(parents=True, exist_ok=True)
    for name, (module, kind, first, summary) in STARTS.items():
        script = f'{first.format(rest_s=rest_s)}; exec \\"$@\\"'
        text = _RUNTIME.format(module=module, name=kind, script=script, summary=summary)
        (folder / "runtimes" / f"{name}.py").write_text(text)
    os.environ["IOBENCH_PLUGINS"] = str(folder.resolve())


def document(pipeline: str, turns: bool, pairs: int, loop_s: float) -> dict[str, Any]:
    """Return the spec of one pipeline, loops in turns or one after the other."""
    runtimes = ["bare", "rested", "apptainer", "unpacked"] + ["unrested"] * (not turns)
    return {
        "name": "start-rest",
        "budget": "3h",
        "case": {"trainer": "null", "batch": BATCH, "workers": 2, "pipeline": pipeline},
        "matrix": {"runtime": runtimes},
        "ladder": {  # the least that a suite has: one run
            "stages": ["load"], "caches": ["warm"], "repeats": 1, "probe": False, "digest": False,
            "only": {"runtime": ["bare"]},
        },
        "contrasts": [
            {"over": "runtime", "base": "bare", "also": ["apptainer"], "caches": ["warm"],
             "pairs": pairs, "probes": 0, **({"loop_s": loop_s} if turns else {"slice_s": 0})},
        ],
    }  # fmt: skip


def rows_of(analysis: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return ratio, its own 95 % interval and pairs of each comparison, by ``arm / base``."""
    rows = {}
    for entry in analysis["contrasts"]:
        arm, base = (_runtime(entry[side]) for side in ("arm", "base"))
        rows[f"{arm} / {base}"] = {k: entry[k] for k in ("ratio", "interval", "pairs", "verdict")}
    return rows


def _runtime(label: str) -> str:
    words = dict(word.split("=", 1) for word in label.split() if "=" in word)
    return words.get("runtime", "bare")


def limits(row: dict[str, Any]) -> tuple[float, float]:
    """Return the limits of a comparison's 95 % interval; NaN where its pairs are too few."""
    interval = row["interval"] or {}
    low, high = interval.get("low"), interval.get("high")
    return (math.nan if low is None else low, math.nan if high is None else high)


def faster(row: dict[str, Any]) -> bool:
    """Return whether the arm is faster than the base by its interval."""
    return limits(row)[1] < 1


def cause(rows: dict[str, dict[str, Any]]) -> bool:
    """Return whether the rest is a cause: added it makes faster, taken away it makes slower."""
    return faster(rows[ADDED]) and limits(rows[REMOVED])[0] > 1


def _print(pipeline: str, how: str, rows: dict[str, dict[str, Any]]) -> None:
    for name, row in rows.items():
        low, high = limits(row)
        print(f"{pipeline:5} {how:22} {name:22} {row['ratio'] or math.nan:.4f} "
              f"({low:.4f} to {high:.4f})  {row['pairs']} pairs", flush=True)  # fmt: skip


def study(pipeline: str, args: Any, found: Dataset, settings: TrialSettings) -> dict[str, Any]:
    """Measure one pipeline both ways; return its rows and whether the rest is a cause."""
    figures: dict[str, Any] = {"pipeline": pipeline}
    for how, turns, pairs in (
        ("one after the other", False, args.pairs), ("in turns", True, args.turned),
    ):  # fmt: skip
        wanted = document(pipeline, turns, pairs, args.loop_s)
        folder = args.results / f"{pipeline}-{'turns' if turns else 'serial'}"
        analysis, _ = run(wanted, found, results=folder, settings=settings, quiet=True)
        figures[how] = rows_of(analysis)
        _print(pipeline, how, figures[how])
    serial = figures["one after the other"]
    figures["faster"] = faster(serial[EFFECT])
    figures["cause"] = cause(serial)
    print(
        f"{pipeline:5} Apptainer {'is' if figures['faster'] else 'is not shown'} faster one after "
        f"the other; the rest {'is' if figures['cause'] else 'is not shown to be'} a cause",
        flush=True,
    )
    return figures


def main() -> int:
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=Path, default=Path("images"), help="of the containers")
    parser.add_argument("--results", type=Path, default=Path("results/start-rest"))
    parser.add_argument("--pipelines", nargs="+", default=list(PIPELINES))
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of loops one after the other")
    parser.add_argument("--turned", type=int, default=12, help="pairs in turns")
    parser.add_argument(
        "--loop-s", type=float, default=LOOP_S, help="of each run in turns, at least"
    )
    parser.add_argument("--rest-s", type=float, default=REST_S, help="as long as a start takes")
    args = parser.parse_args()
    plug_in(args.results / "plugins", args.rest_s)
    cases = load.expand(load.parse(document("jpeg", False, 1, 1.0), where="benchmark"))
    with availability.services_of(cases, args.images, lambda line: print(line, flush=True)):
        settings = TrialSettings(images=images_for(cases, args.images))
        forms = sorted({p for p in args.pipelines if p in ("lmdb", "hdf5", "tar")})
        data = dataset(args.data, "imagenet-like", SAMPLES, forms)
        rows = [study(pipeline, args, data, settings) for pipeline in args.pipelines]
    return finish(args, rows, True)


if __name__ == "__main__":
    raise SystemExit(main())
