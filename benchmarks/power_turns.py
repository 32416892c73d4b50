"""5 % more work in the reader or in the decoder: is it called SLOWER, and is the stage named?

A plug-in adds a fixed count of iterations to each sample, by which an uninterrupted loop outside
iobench takes 1.05 (or --effect), within 0.002.  Comparisons of 12 pairs in turns, warm ``load``,
the extra work in read and in decode by turns.  Wanted: of 20, at least 18 SLOWER and attributed to
that stage, none to another; at least 17 intervals of 95 % that hold the truth, none wider than 1.5
% to either side.  The same work hidden by an emulated step, in ``train``, is not called SLOWER.

Every comparison is a suite of its own under --results; the same command goes on with what is there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import extra_work, simulate
from benchmarks.extra_work import Calibrated
from benchmarks.suites import arguments, dataset, finish, run
from iobench.core.cases import Dataset

COMPARISONS, NEEDED, COVERED, MASKED = 20, 18, 17, 3
EFFECT, HALF_WIDTH = 0.05, 0.015
PAIRS, BATCH, SAMPLES, LOOP_S = 12, 16, 320, 8.0
#: Workers make a batch in a fraction of it, on a busy machine too.
STEP_S = 0.15


def document(seed: int, stage: str, effect: float, loop_s: float, train: bool) -> dict[str, Any]:
    """Return the spec of one comparison: warm load, and the masked one beside it."""
    common = {"over": "runtime", "base": "bare", "caches": ["warm"], "pairs": PAIRS,
              "margin": min(simulate.MARGIN, effect / 2)}  # fmt: skip
    masked = [{**common, "stage": "train", "primary": False, "probes": 0}]
    return {
        "name": "power-turns",
        "seed": seed,
        "budget": "2h",
        "case": {
            "trainer": "emulated", "trainer_options": {"step_s": STEP_S}, "batch": BATCH,
            "workers": 2, "pipeline": f"torch:{extra_work.FORMAT}",
        },
        "matrix": {"runtime": ["bare", f"slow_{stage}"]},
        "ladder": {  # the least that a suite has: one run
            "stages": ["load"], "caches": ["warm"], "repeats": 1, "probe": False, "digest": False,
            "only": {"runtime": ["bare"]},
        },
        "contrasts": [{**common, "stage": "load", "loop_s": loop_s}] + masked * train,
    }  # fmt: skip


def calibrated(args: Any, found: Dataset) -> Calibrated:
    """Return the extra work of this study, measured before its first comparison."""
    kept = args.results / "calibrated.json"
    if kept.exists():
        return Calibrated(**json.loads(kept.read_text()))
    now = extra_work.calibrate(found, args.effect)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(now._asdict()))
    return now


def row_of(entry: dict[str, Any], slowed: str, truth: float) -> dict[str, Any]:
    """Return what one contrast found; ``truth``: the ratio by the outside loop."""
    interval, named = entry["interval"], entry["attribution"] or {"stage": "", "reason": ""}
    return {
        **{k: entry[k] for k in ("stage", "verdict", "ratio", "pairs", "interval", "note")},
        "slowed": slowed,
        "covers": bool(interval) and interval["low"] <= truth <= interval["high"],
        "half_width": (interval["high"] - interval["low"]) / 2 if interval else math.inf,
        "attributed": named["stage"],
        "reason": named["reason"],
        "confounders": entry["confounders"]["differences"],
    }


def comparisons(args: Any, found: Dataset, truth: float) -> list[dict[str, Any]]:
    """Run, or go on with, the comparisons; return a row for each contrast."""
    rows = []
    for number in range(1, args.comparisons + 1):
        slowed = extra_work.STAGES[number % 2]
        folder = args.results / f"{number:02d}-{slowed}"
        train = number <= args.masked
        wanted = document(number, slowed, args.effect, args.loop_s, train)
        analysis, _ = run(wanted, found, results=folder, quiet=True)
        for entry in analysis["contrasts"]:
            rows.append(row := row_of(entry, slowed, truth))
            print(
                f"{number:3} {slowed:6} {row['stage']:5} {row['ratio'] or math.nan:.4f} "
                f"+-{row['half_width']:.2%}  {row['pairs']:2} pairs  {row['verdict']} "
                f"{row['attributed']} {row['reason']} {row['note']}",
                flush=True,
            )
    return rows


def judge(rows: Sequence[dict[str, Any]], effect: float) -> tuple[dict[str, Any], bool]:
    """Return what the comparisons found together, and whether it is as wanted.

    Effects below 5 % need not be found: only the intervals are judged.
    """
    load = [r for r in rows if r["stage"] == "load"]
    masked = [r for r in rows if r["stage"] == "train"]
    slower = [r for r in load if r["verdict"] == "SLOWER"]
    result = {
        "comparisons": len(load),
        "slower": len(slower),
        "named": sum(r["attributed"] == r["slowed"] for r in slower),
        "misnamed": sum(r["attributed"] not in ("", r["slowed"]) for r in slower),
        "needed": math.ceil(NEEDED / COMPARISONS * len(load)) if effect >= EFFECT else 0,
        "covered": sum(r["covers"] for r in load),
        "needed_covered": math.ceil(COVERED / COMPARISONS * len(load)),
        "widest": max((r["half_width"] for r in load), default=math.inf),
        "masked": len(masked),
        "masked_slower": sum(r["verdict"] == "SLOWER" for r in masked),
    }
    met = (
        result["named"] >= result["needed"]
        and not result["misnamed"]
        and result["covered"] >= result["needed_covered"]
        and result["widest"] <= HALF_WIDTH
        and not result["masked_slower"]
    )
    return result, met


def main() -> int:
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, help="kept; resumed (results/power-turns-EFFECT)")
    parser.add_argument("--comparisons", type=int, default=COMPARISONS)
    parser.add_argument("--effect", type=float, default=EFFECT, help="0.02, 0.05, 0.10 ...")
    parser.add_argument("--masked", type=int, default=MASKED, help="how many also train")
    parser.add_argument("--loop-s", type=float, default=LOOP_S, help="of each run, at least")
    args = parser.parse_args()
    args.results = args.results or Path(f"results/power-turns-{args.effect:g}")
    data = dataset(args.data, "imagenet-like", SAMPLES, [])
    extra = calibrated(args, data)
    extra_work.plug_in(args.results / "plugins", extra.iterations)
    rows = comparisons(args, data, extra.ratio)
    result, met = judge(rows, args.effect)
    print(
        f"truth {extra.ratio:.4f}: SLOWER in {result['slower']} of {result['comparisons']}, the "
        f"stage named in {result['named']} (at least {result['needed']}), another in "
        f"{result['misnamed']} (none)\n"
        f"intervals that hold it: {result['covered']} (at least {result['needed_covered']}), the "
        f"widest +-{result['widest']:.2%} (at most {HALF_WIDTH:.1%})\n"
        f"hidden in train: SLOWER in {result['masked_slower']} of {result['masked']} (none)"
    )
    figures = {"effect": args.effect, "truth": extra._asdict(), **result, "rows": rows}
    return finish(args, figures, met)


if __name__ == "__main__":
    raise SystemExit(main())
