"""What iobench's loop costs a step, the library's own ``next()`` left out.

Record: ``loop.measure`` against a bare ``for`` loop over batches in memory; target 5 us.
In all: the whole main-process path of a shipped spec's pipelines (loader's generator, Batch, ids,
record, counters before and after) against the loop by hand over the same library outputs, which
were made beforehand; target: the smaller of 50 us and 1 % of that stage's measured warm step.
What the workers of a loader do is in the ratio of ``benchmarks/fidelity.py``.
Both sides run in one process, one after the other in an order that is reversed, for milliseconds
each: less than a slice, so arms that take turns would add the cost of stopping and gain nothing.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks import suites
from iobench.analysis import windows
from iobench.core import clock, registry
from iobench.core.cases import Batch, Case, Dataset, Task, Trial
from iobench.host import io_counters
from iobench.spec import load
from iobench.worker import __main__ as worker
from iobench.worker import loop

RECORD_LIMIT_S = 5e-6
LIMIT_S, LIMIT_SHARE = 50e-6, 0.01
REPEATS = 21


def cost_s(
    ours: Callable[[], None], bare: Callable[[], None], steps: int, repeats: int = REPEATS
) -> float:
    """Return the median over interleaved repeats of (ours - bare) / steps."""
    differences = []
    for repeat in range(repeats):
        seconds = {}
        sides = (ours, bare) if repeat % 4 in (0, 3) else (bare, ours)
        for side in sides:
            start = clock.clock()
            side()
            seconds[side] = clock.clock() - start
        differences.append((seconds[ours] - seconds[bare]) / steps)
    return median(differences)


def exhaust(batches: Any) -> None:
    for _ in batches:
        pass


def record_s(steps: int) -> float:
    """Return the cost of the record alone."""
    ids = np.arange(64)
    batches = [Batch(None, ids, ids, 64) for _ in range(steps)]
    trainer = registry.load("trainers", "null").make(batch=64)
    return cost_s(
        lambda: exhaust((loop.measure(iter(batches), trainer, warmup=1),)),
        lambda: exhaust(batches),
        steps,
    )


def loader_of(case: Case, found: Dataset, stage: str) -> Any:
    """Return the loader as a trial of this stage gets it."""
    task = Task(Trial("cost", case, stage, "warm"), found)
    request, _ = worker.request_of(task, rank=0, world_size=1)
    return registry.load("loaders", case.loader).make(request, **case.loader_options)


class Replay:
    """Hands out a pipeline's outputs that were made before, in place of the pipeline."""

    def __init__(self, outputs: Sequence[Any]) -> None:
        self._outputs = outputs
        self._step = 0

    def run(self) -> Any:
        self._step += 1
        return self._outputs[self._step % len(self._outputs)]


def replayed_s(case: Case, found: Dataset, stage: str) -> float:
    """Return the cost a step of all that iobench does in the main process."""
    loader = loader_of(case, found, stage)
    steps = found.samples // case.batch
    if case.loader == "torch":
        batch = next(loader.batches())
        loader.close()
        loader._loader = loader._iterator = itertools.repeat(batch)
        bare: Any = lambda: exhaust([batch] * steps)  # noqa: E731
    elif case.loader == "dali":
        pipe = loader._pipe
        outputs = [pipe.run()]
        loader._pipe = Replay(outputs)

        def bare() -> None:
            for images, _, *rest in outputs * steps:
                np.asarray(images.as_tensor())
                for facts in rest:
                    np.asarray(facts.as_tensor())

    elif case.loader == "threads":
        batch = next(loader.batches())
        loader.close()
        loader._pool, loader._make = None, lambda maker, k: batch
        bare = lambda: exhaust([batch] * steps)  # noqa: E731
    else:
        bare = lambda: exhaust(range(steps))  # noqa: E731
    trainer = registry.load("trainers", "null").make(batch=case.batch)

    def ours() -> None:
        before = io_counters.snapshot()
        loop.measure(loader.batches(), trainer, warmup=1)
        io_counters.difference(before, io_counters.snapshot())

    value = cost_s(ours, bare, steps)
    if case.loader == "dali":
        loader._pipe = pipe
    loader.close()
    return value


def step_s(case: Case, found: Dataset, stage: str) -> float:
    """Return the median warm step of the real thing."""
    seconds = []
    for _ in range(3):
        loader = loader_of(case, found, stage)
        trainer = registry.load("trainers", "null").make(batch=case.batch)
        warmup = loop.warmup_steps(
            queue_batches=loader.queue_batches,
            workers=case.workers,
            steps=found.samples // case.batch,
        )
        measured = loop.measure(loader.batches(), trainer, warmup=warmup)
        loader.close()
        window = windows.window(measured.steps)
        seconds.append(window.wall_s / window.steps)
    return median(seconds[1:])


def rows_of(name: str, args: Any) -> Iterator[dict[str, Any]]:
    """Yield a row for each of the spec's pipelines and stages that torch's Python has."""
    wanted = load.load(name)
    cases: dict[str, Case] = {}
    for case in load.expand(wanted):
        cases.setdefault(case.pipeline, case)  # other arms cost the same here
    for case in cases.values():
        backend = registry.load("loaders", case.loader)
        if backend.stack not in ("", registry.DEFAULT_STACK):
            continue  # its library is another Python's
        for stage in [s for s in wanted.ladder.stages if s in backend.stages]:
            row: dict[str, Any] = {"spec": name, "pipeline": case.pipeline, "stage": stage}
            recipe = wanted.dataset.recipe if wanted.dataset else "imagenet-like"
            forms = [] if case.format in ("jpeg", "null") else [case.stored_form]
            found = suites.dataset(args.data, recipe, args.samples, forms)
            row["cost_s"] = replayed_s(case, found, stage)
            row["step_s"] = None if case.loader == "null" else step_s(case, found, stage)
            limit = LIMIT_S if row["step_s"] is None else min(LIMIT_S, LIMIT_SHARE * row["step_s"])
            row.update(limit_s=limit, met=row["cost_s"] <= limit)
            yield row


def main() -> int:
    parser = suites.arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=1280, help="as a shipped trial has")
    parser.add_argument("--steps", type=int, default=20_000, help="of the record alone")
    args = parser.parse_args()
    record = record_s(args.steps)
    met = record <= RECORD_LIMIT_S
    print(f"record: {record * 1e6:.2f} us a step (target {RECORD_LIMIT_S * 1e6:.0f})")
    print("spec       pipeline     stage   step ms  cost us  limit us  met")
    rows = []
    for name in load.shipped():
        for row in rows_of(name, args):
            rows.append(row)
            step = "      -" if row["step_s"] is None else f"{row['step_s'] * 1e3:7.2f}"
            print(
                f"{row['spec']:10s} {row['pipeline']:12s} {row['stage']:6s}  {step}  "
                f"{row['cost_s'] * 1e6:7.1f}  {row['limit_s'] * 1e6:8.1f}  "
                f"{'yes' if row['met'] else 'NO'}",
                flush=True,
            )
    met = met and all(row["met"] for row in rows)
    return suites.finish(args, {"record_s": record, "rows": rows}, met)


if __name__ == "__main__":
    sys.exit(main())
