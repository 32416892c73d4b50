"""Does `iobench tune` find what an exhaustive grid finds, and for how much of its cost?

Four bottlenecks are made by what the product offers or below it (a sleep in every decode, a mount
of few requests or bytes a second, a few huge pictures).  In each, tune searches; then points of the
whole space are measured once each, in drawn order (``--most`` of them, 0: all; the cost is held
against what was measured).  Tune's winner, the grid's best and the best of a sweep of workers alone
(what others do) are then measured again in fresh paired blocks: the best of many noisy points
flatters itself.  Targets: at most 20 % of the grid's cost, and the ratio of rates, winner / grid's
best, at least 0.97 at its lower 95 % limit.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.explain import CASE, Planted, scene
from benchmarks.suites import arguments, finish
from iobench.analysis.suite import analyse
from iobench.core.cases import Case, Contrast, Dataset, Plan, Trial
from iobench.core.records import Record
from iobench.plan.blocks import blocks
from iobench.plan.ladder import number
from iobench.plan.resolve import Here, resolve
from iobench.run import prepare, store
from iobench.run.suite import Grow, Suite
from iobench.run.trial import TrialSettings
from iobench.spec import load
from iobench.tune.answer import TuneResult, answer
from iobench.tune.begin import ceiling_text, current_of, stored_forms, with_default
from iobench.tune.settings import TuneSettings
from iobench.tune.space import key, named, space
from iobench.tune.tuning import Tuning, case_of, measured

SHARE, RATIO = 0.20, 0.97
SEED = 5


@dataclasses.dataclass(frozen=True)
class Bottleneck:
    """One machine to tune on: what is planted in it, and what the search may change."""

    name: str
    planted: Planted
    cache: str = "warm"
    formats: tuple[str, ...] = ()


BOTTLENECKS = (
    Bottleneck("decode", Planted("decode", (), 4.0, {"workers": 1}, 0.02, delay_s=0.008)),
    Bottleneck("storage", Planted("storage", (), 3.0, {}, 0.04, read_bps=1_500_000), "cold",
               ("lmdb", "tar")),
    Bottleneck("files", Planted("files", (), 4.0, {}, 0.04, read_iops=60), "cold",
               ("lmdb", "tar")),
    Bottleneck("head-of-line", Planted("slow sample", (), 2.0, {"prefetch": 1}, 0.03, huge=48)),
)  # fmt: skip


def planned(one: Bottleneck, data: Dataset, asked: TuneSettings) -> tuple[Plan, TuneSettings]:
    """Return the plan that a search begins with, as `iobench tune` makes it."""
    document = {
        "name": one.name, "compute_s": 0.5,
        "case": {"pipeline": "jpeg", **CASE, "trainer_options": {"step_s": one.planted.step_s},
                 **one.planted.case},
    }  # fmt: skip
    spec = load.parse(document)
    text = ceiling_text(current_of(spec), spec, asked.cache)
    plan = resolve(load.parse_text(text, one.name), Here(data), 60 * asked.minutes, "benchmark")
    plan, asked = with_default(plan, asked)
    prepare.forms(stored_forms(plan, asked), data, lambda *_: None)
    return plan, asked


def ran(
    folder: Path, plan: Plan, settings: TrialSettings, grow: Grow = lambda *_: None
) -> tuple[Plan, list[Record]]:
    """Run a plan in a folder of its own; return it, grown, and its records."""
    found = store.at(folder)
    found.save_plan(plan)

    def watch(done: int, total: int, left_s: float, trial: Trial | None) -> None:
        if trial is not None:
            print(f"  {done + 1}/{total} {trial.stage} {trial.case.label}", file=sys.stderr)

    Suite(found, settings, watch, grow).run()
    return found.plan(), found.records()


def gridded(plan: Plan, asked: TuneSettings, most: int) -> Plan:
    """Return the plan of the grid: points of the whole space, once each, in drawn order.

    ``most``: so many beside the sweep of workers, which is always among them; 0: all.
    """
    current = plan.cases[0]
    points = list(space(current, asked, None).points())
    rng = random.Random(SEED)
    rng.shuffle(points)
    sweep = [c for c in points if _only_workers(c, current)]
    others = [c for c in points if not _only_workers(c, current)]
    drawn = sweep + (others[:most] if most else others)
    rng.shuffle(drawn)
    cases = [current if key(c) == key(current) else named(c, current) for c in drawn]
    trials = number([Trial("", case, "train", asked.cache, block=1) for case in cases], start=1)
    every = tuple(dict.fromkeys([current.label, *(c.label for c in cases)]))
    by_label = {c.label: c for c in [current, *cases]}
    return dataclasses.replace(
        plan, cases=tuple(by_label[name] for name in every), trials=tuple(trials)
    )


def best_of(plan: Plan, records: Sequence[Record], asked: TuneSettings, names: set[str]) -> Case:
    """Return the fastest case among those of these labels (none: of all)."""
    rates = {
        t.label: t.samples_per_s or 0.0
        for t in measured(plan, records, asked)
        if not names or t.label in names
    }
    return case_of(plan, max(rates, key=rates.__getitem__))


def compared(
    folder: Path, plan: Plan, arms: Sequence[Case], asked: TuneSettings, pairs: int,
    settings: TrialSettings,
) -> dict[str, Any]:  # fmt: skip
    """Measure the first arm against each other one in fresh paired blocks; return ratios of rates.

    An arm that is the same settings as the first is 1 by definition.
    """
    first, others = arms[0], {c.label: c for c in arms[1:] if c.label != arms[0].label}
    contrasts = tuple(
        Contrast(f"c{i:02d}", first.label, name, "train", asked.cache, pairs=pairs, group="g01")
        for i, name in enumerate(others, 1)
    )
    cases = (first, *others.values())
    trials = blocks(contrasts, cases, seed=SEED, start=1)
    whole = dataclasses.replace(
        plan, cases=cases, contrasts=contrasts, trials=tuple(trials), phase=2, rules=()
    )
    found: dict[str, Any] = {first.label: {"ratio": 1.0, "low": 1.0, "high": 1.0}}
    for result in analyse(*ran(folder, whole, settings)).contrasts if contrasts else ():
        times = result.outcome.interval
        rate = times.inverse() if times else None
        found[result.base] = rate and {"ratio": rate.value, "low": rate.low, "high": rate.high}
    return found


def study(one: Bottleneck, args: Any) -> dict[str, Any]:
    """Tune, measure the grid, compare; return the figures."""
    with (
        tempfile.TemporaryDirectory(prefix="iobench-tune-") as folder,
        scene(one.planted, args.data) as (data, settings),
    ):
        results = Path(folder)
        asked = TuneSettings(
            minutes=args.minutes, cache=one.cache, current="", cores=args.cores,
            formats=one.formats,
        )  # fmt: skip
        plan, asked = planned(one, data, asked)
        store.at(results / "tune")
        tuning = Tuning(results / "tune", asked)
        after, records = ran(results / "tune", plan, settings, tuning.grow)
        found = answer(after, records, asked)
        cost = sum(r.wall_s for r in records if not r.trial.contrast)
        grid_plan, grid = ran(results / "grid", gridded(plan, asked, args.most), settings)
        best = best_of(grid_plan, grid, asked, set())
        sweep = {c.label for c in grid_plan.cases if _only_workers(c, plan.cases[0])}
        swept = best_of(grid_plan, grid, asked, sweep)
        winner = case_of(after, found.winner or asked.current)
        pairs = compared(
            results / "pairs", plan, [winner, best, swept, plan.cases[0]], asked, args.pairs,
            settings,
        )  # fmt: skip
    return judged(one, found, cost, sum(r.wall_s for r in grid), len(grid), pairs, best, swept)


def _only_workers(case: Case, current: Case) -> bool:
    return key(dataclasses.replace(case, workers=current.workers)) == key(current)


def judged(
    one: Bottleneck, found: TuneResult, cost: float, grid_s: float, points: int,
    pairs: dict[str, Any], best: Case, swept: Case,
) -> dict[str, Any]:  # fmt: skip
    """Print and return one bottleneck's figures, and whether the targets are met."""
    ratio = pairs[best.label]
    passed = bool(ratio) and ratio["low"] >= RATIO and cost <= SHARE * grid_s
    print(
        f"{one.name}: {found.verdict}, winner {found.winner or 'current settings'}; "
        f"{len(found.tried)} settings in {cost:.0f} s, {cost / grid_s:.0%} of the grid's "
        f"{points} points in {grid_s:.0f} s\n"
        f"  rate / rate of the grid's best ({best.label}): {_words(ratio)}\n"
        f"  rate / rate of the best of a sweep of workers ({swept.label}): "
        f"{_words(pairs[swept.label])}\n"
        f"  {'met' if passed else 'MISSED'}",
        flush=True,
    )
    return {
        "name": one.name, "passed": passed, "winner": found.winner, "cost_s": cost,
        "grid_s": grid_s, "points": points, "grid_best": best.label, "sweep_best": swept.label,
        "pairs": pairs,
    }  # fmt: skip


def _words(ratio: dict[str, float] | None) -> str:
    return f"{ratio['ratio']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]" if ratio else "no pair"


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="bottlenecks that contain this")
    parser.add_argument("--minutes", type=float, default=20.0, help="of each search")
    parser.add_argument("--cores", type=int, default=4, help="that a search may assume")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--most", type=int, default=96, help="points beside the sweep; 0: all")
    args = parser.parse_args()
    rows = [study(one, args) for one in BOTTLENECKS if args.only in one.name]
    return finish(args, rows, all(row["passed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
