"""A search whose trials take stated times: no process runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

from iobench.core.cases import Case, Dataset, Plan, Trial
from iobench.core.records import Record
from iobench.plan.resolve import Here, resolve
from iobench.run.ledger import Ledger
from iobench.spec import load
from iobench.tune.begin import ceiling_text, current_of, with_default
from iobench.tune.settings import TuneSettings
from iobench.tune.tuning import Tuning
from tests.build import pairs

#: Samples/s of a case: what reading, one worker's preparing and the compute give.
Rates = Callable[[Case, str], float]
DOCUMENT: Dict[str, Any] = {
    "name": "job",
    "case": {"pipeline": "jpeg", "trainer": "emulated", "trainer_options": {"step_s": 0.02},
             "batch": 16, "workers": 1, "prefetch": 1},
}  # fmt: skip


def world(compute: float, worker: float, *, cores: int = 4, read: float = 1e5) -> Rates:
    """Return the rates of a machine: pillow is half as fast, prefetch 1 costs a tenth."""

    def rate(case: Case, stage: str) -> float:
        decode = {"pillow": 0.5, "opencv": 0.8}.get(case.decoder, 1.0)
        load = worker * decode * min(max(case.workers, 1), cores) ** 0.9
        parts = {"read": read, "decode": load, "load": min(load, read), "compute": compute}
        if stage in parts:
            return parts[stage]
        if not case.workers:
            return 1 / (1 / load + 1 / compute)
        return min(load, read, compute * (0.9 if case.prefetch == 1 else 0.99))

    return rate


def begun(folder: Path, document: Dict[str, Any], **asked: Any) -> Tuple[Plan, TuneSettings]:
    """Return the plan of the ceiling, and what is asked."""
    spec = load.parse(document)
    text = ceiling_text(current_of(spec), spec, "warm")
    dataset = Dataset(str(folder), "t", 1280, 10**8, 10, 1, "d", "test")
    plan = resolve(load.parse_text(text, "tune"), Here(dataset), 900.0, "now")
    settings = TuneSettings(
        **{"minutes": 60.0, "cache": "warm", "current": "", "cores": 4, **asked}
    )
    return with_default(plan, settings)


def record(trial: Trial, rates: Rates, samples_s: Sequence[float] = ()) -> Record:
    """Return the record of a trial; one below its least rate ends early.

    ``samples_s``: what single samples took, none: the loader keeps no such times.
    """
    rate = rates(trial.case, trial.stage)
    made = pairs.record(trial, 1 / rate)
    early = {"ended_early": rate < trial.least} if trial.least else {}
    times = {"id": list(range(len(samples_s))), "decode_s": samples_s} if samples_s else {}
    ranks = tuple(dataclasses.replace(r, notes=early, sample_times=times) for r in made.ranks)
    return dataclasses.replace(made, ranks=ranks, wall_s=3.0 + 100 / rate)


def searched(
    folder: Path, plan: Plan, asked: TuneSettings, rates: Rates, *, killed: bool = False,
    disturbed: bool = False, samples_s: Sequence[float] = (),
) -> Tuple[Plan, List[Record]]:  # fmt: skip
    """Run a search to its end; ``killed``: its process dies after every trial.

    ``disturbed``: another driver runs beside every trial.  ``samples_s``: of single samples.
    """
    records: List[Record] = []
    tuning = Tuning(folder, asked)
    longer: Any = plan
    while longer is not None:
        plan = longer
        done = {r.trial.id for r in records}
        more = [record(t, rates, samples_s) for t in plan.trials if t.id not in done]
        notes = {"rivals": ["another"]} if disturbed else {}
        records += [dataclasses.replace(r, notes=notes) for r in more]
        if killed:
            tuning = Tuning(folder, asked)
        longer = tuning.grow(plan, Ledger(plan, records))
    return plan, records
