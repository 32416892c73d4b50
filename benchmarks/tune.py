"""Does `iobench tune` find what an exhaustive grid finds, and for how much of its cost?

Four bottlenecks are made by what the product offers or below it (a sleep in every decode, a mount
of few requests or bytes a second, a few huge pictures).  Each has a declared space of 72 to 108
settings, for the search and the grid alike: all of them are measured once, in drawn order and in
loops as long as the search's, which has longer ones where a few slow samples carry the work.
Tune's winner is then measured again in fresh paired blocks against the grid's best, the best of a
sweep of workers alone (what others do), the current settings and the defaults of each library: the
best of many noisy points flatters itself.  The loops of these pairs read ``LONGER`` times as many
samples as a case has: a queue that holds a large part of a loop's batches flatters it too.
Settings equal to the winner's are measured as an arm of their own.  Targets: the search, its ladder
included, costs at most 20 % of the grid; the ratio of rates, winner / grid's best, is at least 0.97
at its lower 95 % limit.

The fifth bottleneck is the compute, with drawn times of a step: "leave it", and no trial beyond the
ladder, every time.
"""

from __future__ import annotations

import dataclasses
import math
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.explain import CASE, Planted, scene
from benchmarks.suites import arguments, finish
from iobench.analysis.suite import analyse
from iobench.core.cases import Case, Contrast, Dataset, Plan, Trial
from iobench.core.clock import clock
from iobench.core.records import Record
from iobench.plan.blocks import blocks
from iobench.plan.ladder import number
from iobench.plan.resolve import Here, resolve
from iobench.run import prepare, store
from iobench.run.ledger import Ledger
from iobench.run.suite import Grow, Suite
from iobench.run.trial import TrialSettings
from iobench.spec import load
from iobench.tune.answer import LEAVE_IT, answer
from iobench.tune.begin import ceiling_text, current_of, stored_forms, with_default
from iobench.tune.search import JOURNAL
from iobench.tune.settings import TuneSettings, Value
from iobench.tune.space import defaults, key, named, space
from iobench.tune.tried import case_of, measured, winner_of
from iobench.tune.tuning import Tuning

SHARE, RATIO = 0.20, 0.97
SEED = 5
#: Samples of a loop in the pairs, over those of a loop of the search and of the grid.
LONGER = 4
#: Points of a grid.
FEWEST, MOST = 60, 120
#: Seconds of a step where the compute is the bottleneck: the logarithm is drawn evenly.
STEPS_S = (0.06, 0.25)


@dataclasses.dataclass(frozen=True)
class Bottleneck:
    """One machine to tune on: what is planted in it, and what may be changed.

    ``only``: the declared space.  ``slept``: a sleep is planted that DALI's decoders have no place
    for, so that DALI has no arm.
    """

    name: str
    planted: Planted
    only: Mapping[str, tuple[Value, ...]]
    cache: str = "warm"
    formats: tuple[str, ...] = ()
    slept: bool = False


_LOADERS = ("torch:jpeg", "spdl:jpeg")
_QUEUE: Mapping[str, tuple[Value, ...]] = {
    "pipeline": _LOADERS, "loader_options.in_order": (True, False),
}  # fmt: skip
_STORED: Mapping[str, tuple[Value, ...]] = {
    "pipeline": tuple(f"{loader}:{form}" for loader in ("torch", "spdl")
                      for form in ("jpeg", "lmdb", "tar")),
    "workers": (1, 2, 3, 4, 6, 8), "prefetch": (1, 2), "loader_options.threads": (1, 4),
}  # fmt: skip

BOTTLENECKS = (
    Bottleneck("decode", Planted("decode", (), 4.0, {"workers": 1}, 0.02, delay_s=0.008),
               {**_QUEUE, "workers": (1, 2, 3, 4, 6, 8), "prefetch": (1, 2, 4)}, slept=True),
    Bottleneck("storage", Planted("storage", (), 3.0, {}, 0.04, read_bps=1_500_000), _STORED,
               "cold", ("lmdb", "tar")),
    Bottleneck("files", Planted("files", (), 4.0, {}, 0.04, read_iops=60), _STORED, "cold",
               ("lmdb", "tar")),
    Bottleneck("head-of-line", Planted("slow sample", (), 2.0, {"prefetch": 1}, 0.03, huge=48),
               {**_QUEUE, "workers": (1, 2, 4, 6, 8), "prefetch": (1, 2, 4, 8)}),
)  # fmt: skip
COMPUTE = "compute"


def planned(planted: Planted, data: Dataset, asked: TuneSettings) -> tuple[Plan, TuneSettings]:
    """Return the plan that a search begins with, as `iobench tune` makes it."""
    document = {
        "name": "tune", "compute_s": 0.5,
        "case": {"pipeline": "jpeg", **CASE, "trainer_options": {"step_s": planted.step_s},
                 **planted.case},
    }  # fmt: skip
    spec = load.parse(document)
    text = ceiling_text(current_of(spec), spec, asked.cache)
    plan = resolve(load.parse_text(text, "tune"), Here(data), 60 * asked.minutes, "benchmark")
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


def gridded(plan: Plan, asked: TuneSettings, epochs: int) -> Plan:
    """Return the plan of the grid: every point of the space, once, in drawn order."""
    current = plan.cases[0]
    points = list(space(current, asked, None).points())
    if not FEWEST <= len(points) <= MOST:
        raise SystemExit(f"the grid has {len(points)} points, {FEWEST} to {MOST} are meant: "
                         "`make setup-extra` installs SPDL")  # fmt: skip
    random.Random(SEED).shuffle(points)
    cases = [current if key(c) == key(current) else named(c, current) for c in points]
    trials = [Trial("", case, "train", asked.cache, block=1, epochs=epochs) for case in cases]
    by_label = {case.label: case for case in (current, *cases)}
    return dataclasses.replace(
        plan, cases=tuple(by_label.values()), trials=tuple(number(trials, start=1))
    )


def searching(tuning: Tuning) -> Grow:
    """Return how a search grows up to its proof: what follows is measured here."""

    def grow(plan: Plan, ledger: Ledger) -> Plan | None:
        longer = tuning.grow(plan, ledger)
        return None if longer is None or longer.contrasts else longer

    return grow


def best_of(plan: Plan, rates: Mapping[str, float | None], names: set[str]) -> Case:
    """Return the fastest case among those of these labels (none: of all)."""
    wanted = {name: rate or 0.0 for name, rate in rates.items() if not names or name in names}
    return case_of(plan, max(wanted, key=wanted.__getitem__))


def compared(
    folder: Path, plan: Plan, winner: Case, others: Mapping[str, Case], asked: TuneSettings,
    pairs: int, settings: TrialSettings,
) -> dict[str, Any]:  # fmt: skip
    """Measure the winner against each other case in fresh paired blocks; return ratios of rates.

    The loops are of the whole dataset, ``LONGER`` times those of the search.
    ``others``: what it is -> the case.  Equal settings share an arm; one equal to the winner's is
    an arm of its own.
    """
    arms: dict[str, Case] = {}
    for case in others.values():
        again = dataclasses.replace(case, label=f"{case.label} again")
        arms.setdefault(key(case), again if key(case) == key(winner) else case)
    contrasts = tuple(
        Contrast(f"c{i:02d}", winner.label, case.label, "train", asked.cache, pairs=pairs,
                 group="g01")
        for i, case in enumerate(arms.values(), 1)
    )  # fmt: skip
    cases = tuple(dataclasses.replace(case, samples=0) for case in (winner, *arms.values()))
    trials = blocks(contrasts, cases, seed=SEED, start=1)
    whole = dataclasses.replace(
        plan, cases=cases, contrasts=contrasts, trials=tuple(trials), phase=2, rules=()
    )
    found = {}
    for result in analyse(*ran(folder, whole, settings)).contrasts:
        times = result.outcome.interval
        rate = times.inverse() if times else None
        ratio = rate and {"ratio": rate.value, "low": rate.low, "high": rate.high}
        found[result.base] = {**(ratio or {}), "pairs": result.pairs, "note": result.outcome.note}
    return {what: found[arms[key(case)].label] for what, case in others.items()}


def study(one: Bottleneck, args: Any) -> dict[str, Any]:
    """Tune, measure the grid, compare; return the figures."""
    began = clock()
    whole = {**one.planted.case, "samples": LONGER * CASE["samples"]}
    longer = dataclasses.replace(one.planted, case=whole)
    with (
        tempfile.TemporaryDirectory(prefix="iobench-tune-") as folder,
        scene(longer, args.data) as (data, settings),
    ):
        results = Path(folder)
        asked = TuneSettings(
            minutes=args.minutes, cache=one.cache, current="", cores=args.cores,
            formats=one.formats, only=one.only,
        )  # fmt: skip
        plan, asked = planned(one.planted, data, asked)
        store.at(results / "tune")
        after, records = ran(
            results / "tune", plan, settings, searching(Tuning(results / "tune", asked))
        )
        tried = measured(after, records, asked)
        winner = case_of(after, winner_of(tried, asked) or asked.current)
        epochs = max((t.epochs for t in after.trials if t.least), default=1)
        grid_plan, grid = ran(results / "grid", gridded(plan, asked, epochs), settings)
        rates = {t.label: t.samples_per_s for t in measured(grid_plan, grid, asked)}
        sweep = {c.label for c in grid_plan.cases if _only_workers(c, plan.cases[0])}
        others = {
            "grid's best": best_of(grid_plan, rates, set()),
            "best of a sweep of workers": best_of(grid_plan, rates, sweep),
            "current settings": plan.cases[0],
            **dict(_defaults(one, plan, asked)),
        }
        pairs = compared(results / "pairs", plan, winner, others, asked, args.pairs, settings)
    costs = _costs(plan, records, asked)
    labels = {what: case.label for what, case in others.items()}
    found = judged(one, winner.label, costs, grid, pairs, labels)
    return {**found, "epochs": epochs, "grid": rates, "wall_s": clock() - began}


def _defaults(
    one: Bottleneck, plan: Plan, asked: TuneSettings
) -> Iterator[tuple[str, Case]]:  # fmt: skip
    """Yield the defaults of each library: those of the current loader, and of the others here."""
    mine = case_of(plan, asked.default or asked.current)
    for case in (mine, *defaults(plan.cases[0], asked)):
        if not (one.slept and case.loader == "dali"):
            yield f"{case.loader}'s defaults", case


def _costs(plan: Plan, records: Sequence[Record], asked: TuneSettings) -> dict[str, float]:
    """Return the seconds of a search's parts: the ladder, the settings, the finals."""
    ladder = {t.id for t in plan.trials}
    names = (asked.current, asked.default)
    found = {"ladder": 0.0, "settings": 0.0, "finals": 0.0}
    for record in records:
        mine = record.trial.id in ladder or record.trial.case.label in names
        part = "ladder" if mine else "finals" if record.trial.block > 1 else "settings"
        found[part] += record.wall_s
    return {**found, "trials": len(records)}


def _only_workers(case: Case, current: Case) -> bool:
    return key(dataclasses.replace(case, workers=current.workers)) == key(current)


def judged(
    one: Bottleneck, winner: str, costs: Mapping[str, float], grid: Sequence[Record],
    pairs: Mapping[str, Any], labels: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Print and return one bottleneck's figures, and whether the targets are met."""
    grid_s = sum(r.wall_s for r in grid)
    cost = sum(costs[part] for part in ("ladder", "settings", "finals"))
    ratio = pairs["grid's best"]
    failed = sum(not r.ranks for r in grid)
    passed = ratio.get("low", 0.0) >= RATIO and cost <= SHARE * grid_s
    print(
        f"{one.name}: winner {winner}\n"
        f"  {costs['trials']:.0f} trials in {cost:.0f} s (ladder {costs['ladder']:.0f}, settings "
        f"{costs['settings']:.0f}, finals {costs['finals']:.0f}), {cost / grid_s:.1%} of the "
        f"grid's {len(grid)} points in {grid_s:.0f} s, of which {failed} failed; the ladder alone "
        f"{costs['ladder'] / grid_s:.1%}"
    )
    for what, found in pairs.items():
        print(f"  rate / rate of the {what} ({labels[what]}): {_words(found)}")
    print(f"  {'met' if passed else 'MISSED'}", flush=True)
    return {
        "name": one.name, "passed": passed, "winner": winner, "costs": dict(costs),
        "cost_s": cost, "grid_s": grid_s, "points": len(grid), "failed": failed,
        "labels": dict(labels), "pairs": dict(pairs),
    }  # fmt: skip


def _words(ratio: Mapping[str, Any]) -> str:
    if "low" not in ratio:
        return f"no interval ({ratio['note'] or 'no pair'})"
    return f"{ratio['ratio']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}], {ratio['pairs']} pairs"


def left_alone(args: Any) -> dict[str, Any]:
    """Tune jobs that the compute limits, of drawn steps; return what was said and spent of each."""
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    print(f"{COMPUTE}: seed {seed}", flush=True)
    rows = []
    for _ in range(args.left_alone):
        step_s = math.exp(rng.uniform(*map(math.log, STEPS_S)))
        planted = Planted(COMPUTE, (), 0.0, {"workers": 2}, step_s)
        with (
            tempfile.TemporaryDirectory(prefix="iobench-tune-") as folder,
            scene(planted, args.data) as (data, settings),
        ):
            asked = TuneSettings(minutes=args.minutes, cache="warm", current="", cores=args.cores)
            plan, asked = planned(planted, data, asked)
            store.at(Path(folder))
            tuning = Tuning(Path(folder), asked)
            after, records = ran(Path(folder), plan, settings, tuning.grow)
            found = answer(after, records, asked)
            mine = (asked.current, asked.default)
            beyond = [t for t in after.trials if t.contrast or t.case.label not in mine]
            searched = (Path(folder) / JOURNAL).exists()
        right = found.verdict == LEAVE_IT and not beyond and not searched
        headroom = found.limits.headroom if found.limits else math.nan
        print(f"  step {1e3 * step_s:.0f} ms: {found.verdict}, headroom {headroom:.3f}, "
              f"{len(beyond)} trials beyond the ladder: {'RIGHT' if right else 'WRONG'}",
              flush=True)  # fmt: skip
        rows.append({"step_s": step_s, "verdict": found.verdict, "headroom": headroom,
                     "beyond": len(beyond), "right": right})  # fmt: skip
    left = sum(bool(row["right"]) for row in rows)
    print(f"  {left} of {len(rows)} left alone")
    return {"name": COMPUTE, "passed": left == len(rows), "seed": seed, "runs": rows}


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="bottlenecks that contain this")
    parser.add_argument("--minutes", type=float, default=20.0, help="of each search")
    parser.add_argument("--cores", type=int, default=4, help="that a search may assume")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--left-alone", type=int, default=10, help="jobs that the compute limits")
    parser.add_argument("--seed", type=int, default=None, help="of their steps; default: drawn")
    args = parser.parse_args()
    rows = [study(one, args) for one in BOTTLENECKS if args.only in one.name]
    rows += [left_alone(args)] if args.only in COMPUTE else []
    return finish(args, rows, all(row["passed"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
