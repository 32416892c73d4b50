"""Trials of a user's own script, which loops over ``iobench.watch(loader)``: docs/tuning.md."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic

from iobench.core.cases import Case, Dataset, Trial
from iobench.core.clock import clock, utc
from iobench.core.errors import TrialFailed
from iobench.core.records import EXPLORATORY, FAILED, CacheProof, RankResult, Record
from iobench.host import scratch
from iobench.run.suite import RunTrial
from iobench.run.trial import TrialSettings
from iobench.worker.watch import COMPUTE, LOAD, TRAIN, UNPROVEN, VARIABLE, Order

_RANK: pydantic.TypeAdapter[RankResult] = pydantic.TypeAdapter(RankResult)
_CASE: pydantic.TypeAdapter[Case] = pydantic.TypeAdapter(Case)
#: Parts of a script that are measured, and the cache state that their trials are named by.
PARTS = {TRAIN: "warm", LOAD: "warm", COMPUTE: "-"}


def runner(command: Sequence[str], usual: Case, seconds: float) -> RunTrial:
    """Return what runs a trial by starting ``command``.

    ``usual``: the script's own settings; only what a case has otherwise is changed in it.
    ``seconds``: of the measured loop.
    """

    def run(trial: Trial, dataset: Dataset, attempt: int, settings: TrialSettings) -> Record:
        begun, started = clock(), utc("milliseconds")
        try:
            rank = _ran(command, trial, changed(trial.case, usual), seconds, settings.limit_s)
        except TrialFailed as error:
            rank, status, reasons = None, FAILED, (str(error),)
        else:
            status, reasons = EXPLORATORY, (UNPROVEN,)
        return Record(
            trial=trial,
            attempt=attempt,
            status=status,
            reasons=reasons,
            started=started,
            wall_s=clock() - begun,
            cache=CacheProof(),
            ranks=(rank,) if rank else (),
            host=settings.agent.name(),
        )

    return run


def changed(case: Case, usual: Case) -> dict[str, Any]:
    """Return the keywords of DataLoader, and ``threads``, in which a case differs from a script.

    Workers of changed settings stay from epoch to epoch, as in the code that is printed of them.
    """
    found: dict[str, Any] = {}
    if case.workers != usual.workers:
        found["num_workers"] = case.workers
    if case.workers and case.prefetch != usual.prefetch:
        found["prefetch_factor"] = case.prefetch
    if case.loader_options.get("in_order", True) != usual.loader_options.get("in_order", True):
        found["in_order"] = case.loader_options.get("in_order", True)
    if threads := case.trainer_options.get("threads", 0):
        found["threads"] = threads
    if found and case.workers:
        found["persistent_workers"] = True
    return found


def _ran(
    command: Sequence[str], trial: Trial, settings: Mapping[str, Any], seconds: float,
    limit_s: float,
) -> RankResult:  # fmt: skip
    """Start the script once and return what it measured; raises TrialFailed."""
    with scratch.folder() as work:
        result = work / "result.json"
        order = Order(str(result), os.getpid(), trial.stage, seconds, trial.least, dict(settings))
        environment = {**os.environ, VARIABLE: json.dumps(dataclasses.asdict(order))}
        with open(work / "output", "w+b") as output:
            waited(command, environment, output, limit_s)
            output.seek(0)
            words = output.read().decode(errors="replace").strip().splitlines()
        if not result.exists():
            last = f": {words[-1]}" if words else ""
            raise TrialFailed(
                f"the script measured nothing{last}; loop over iobench.watch(loader) in it, with "
                "iobench importable"
            )
        rank = _RANK.validate_json(result.read_text())
    if not rank.steps.done_s:
        raise TrialFailed("the script's loop made no whole step: give more --seconds")
    short = trial.least and rank.steps.done_s[-1] < seconds
    return dataclasses.replace(rank, notes={**rank.notes, "ended_early": bool(short)})


def waited(
    command: Sequence[str], environment: Mapping[str, str], output: Any, limit_s: float
) -> None:
    """Run a script to its end; all that it started in its group ends with it.

    Raises TrialFailed where it cannot be started or runs longer than ``limit_s``.
    """
    try:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise TrialFailed(f"{command[0]} cannot be started: {error.strerror}") from None
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise TrialFailed(f"it ran longer than {limit_s:g} s: give less --seconds") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def settings_of(command: Sequence[str], seconds: float, limit_s: float) -> Case:
    """Return the settings that a script has now, of a first run; raises TrialFailed.

    ``samples`` are those of its first epoch, as far as that went.
    """
    trial = Trial("first", Case(trainer="torch"), TRAIN, "warm")
    rank = _ran(command, trial, {}, seconds, limit_s)
    found = _CASE.validate_python(rank.notes["case"])
    return dataclasses.replace(found, format="jpeg", samples=max(1, rank.notes["epoch_samples"]))


def ladder(case: Case, repeats: int) -> tuple[Trial, ...]:
    """Return the trials that measure every part of a script."""
    rows = [(stage, cache, n) for n in range(1, repeats + 1) for stage, cache in PARTS.items()]
    return tuple(
        Trial(f"{i:04d}-script-{stage}", case, stage, cache, block=n)
        for i, (stage, cache, n) in enumerate(rows, 1)
    )
