"""Suites as jobs of a batch system: submitted, submitted again, asked after."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from iobench.core import registry
from iobench.core.cases import Case
from iobench.core.errors import BackendUnavailable, ResultsError, SpecError
from iobench.core.jobs import QUEUED, RUNNING, UNKNOWN, JobRequest, JobState, Scheduler
from iobench.core.members import SchedulerBackend
from iobench.host import probes
from iobench.run import job_script, store
from iobench.run.job_script import JobExtras

#: In a suite's folder: the script, a line for each time it began, the batch system's own output.
SCRIPT, STARTS, LOG = "job.sh", "starts", "batch.log"
#: What a job needs as it is here; batch systems may pass on less than all.
_VARIABLES = ("PYTHONPATH", "IOBENCH_PLUGINS", "CAFFE_ROOT")


@dataclasses.dataclass(frozen=True)
class SubmittedJob:
    """A suite's job: ``number`` as the batch system knows it, ``element`` of its array or 0.

    ``together``: names of the suites' folders that were submitted at once.
    """

    scheduler: str
    number: str
    element: int = 0
    together: tuple[str, ...] = ()


#: A suite's job, and how the batch system says it is.
Asked = tuple[SubmittedJob, JobState]


class SpecText(NamedTuple):
    """A spec to submit: its suite's name, and its text."""

    name: str
    text: str


def scheduler_here(name: str = "") -> str:
    """Return the batch system to submit to: ``name``, else the one that is here.

    Raises BackendUnavailable where none is, SpecError where several are.
    """
    if name:
        registry.load("schedulers", name)
        return name
    reasons = {n: registry.unavailable("schedulers", n) for n in registry.names("schedulers")}
    here = [n for n, reason in reasons.items() if not reason]
    if len(here) > 1:
        raise SpecError(f"several batch systems are here: {', '.join(here)}; --scheduler names one")
    if not here:
        why = "; ".join(f"{n}: {reason}" for n, reason in reasons.items())
        raise BackendUnavailable(f"no batch system is here ({why}); `iobench run` needs none")
    return here[0]


def geometry(cases: Sequence[Case], nodes: int | None) -> tuple[int, int]:
    """Return (nodes, ranks on each) that the cases need; ``nodes``: as many, if given.

    Raises SpecError where that is fewer than a case wants.
    """
    widest = max(cases, key=lambda case: case.nodes)
    if nodes is not None and nodes < widest.nodes:
        raise SpecError(
            f"--nodes {nodes}: case {widest.label or widest.pipeline!r} wants {widest.nodes}; ask "
            "for as many"
        )
    return nodes or widest.nodes, max(case.world_size // case.nodes for case in cases)


def in_jobs(name: str, suites: Sequence[Path]) -> list[list[Path]]:
    """Return the suites of each job: all in one array where the batch system has these.

    A suite is never divided: what it compares runs back to back in one allocation.
    """
    array = registry.load("schedulers", name).element
    return [list(suites)] if array else [[suite] for suite in suites]


def written(
    name: str, request: JobRequest, suites: Sequence[Path], options: Sequence[str],
    around: JobExtras,
) -> str:  # fmt: skip
    """Return the script for suites in these folders, for the batch system ``name``."""
    backend = registry.load("schedulers", name)
    several = len(suites) > 1
    request = dataclasses.replace(
        request,
        log=f"{suites[0]}.{LOG}" if several else str(suites[0] / LOG),
        elements=len(suites) if several else 0,
    )
    here = {n: os.environ[n] for n in _VARIABLES if n in os.environ}
    around = dataclasses.replace(around, variables=here)
    iobench = [sys.executable, "-m", "iobench.cli"]
    return job_script.text(backend, backend.make(), request, suites, iobench, options, around)


def submit(
    name: str, request: JobRequest, specs: Sequence[SpecText], results: Path,
    options: Sequence[str], around: JobExtras,
) -> list[Path]:  # fmt: skip
    """Make a folder for each suite, with its script, and submit them; return the folders.

    Several are one job with an array where the batch system has these, else a job each.  What the
    batch system refuses leaves no folder.
    """
    backend: SchedulerBackend = registry.require("schedulers", name)
    made = [store.make_folder(results, spec.name) for spec in specs]
    taken: list[Path] = []
    try:
        for spec, folder in zip(specs, made, strict=True):
            store.Store(folder).save_spec(spec.text)
        for job in in_jobs(name, made):
            text = written(name, request, job, options, around)
            for folder in job:
                store.write_atomic(folder / SCRIPT, text)
                (folder / SCRIPT).chmod(0o755)
            number = _enter(backend.make(), job[0] / SCRIPT)
            for element, folder in enumerate(job, 1):
                together = tuple(each.name for each in made)
                if len(job) == 1:
                    save(folder, SubmittedJob(name, number, 0, together))
                else:
                    save(folder, SubmittedJob(name, f"{number}_{element}", element, together))
            taken += job
    finally:
        for folder in set(made) - set(taken):
            shutil.rmtree(folder, ignore_errors=True)
        if taken:
            store.point_latest(taken[-1])
    return taken


def again(folder: Path) -> SubmittedJob:
    """Submit a suite's script once more, to go on with it; raises ResultsError without one."""
    before = of(folder)
    if before is None:
        raise ResultsError(
            f"{folder} was not submitted: {store.resume_command(folder)} goes on with it here"
        )
    scheduler = registry.require("schedulers", before.scheduler).make()
    state = _state(before)
    if state.state in (QUEUED, RUNNING) and not probes.job():  # a job may submit its successor
        raise ResultsError(f"{folder}: its job {before.number} is there already: {state.words}")
    number = _enter(scheduler, folder / SCRIPT, before.element)
    now = dataclasses.replace(before, number=number)
    save(folder, now)
    return now


def _enter(scheduler: Scheduler, script: Path, element: int = 0) -> str:
    """Submit a script; return the job's number."""
    argv = scheduler.submission(str(script), element)
    code, output = probes.ask(argv)
    number = "" if code else scheduler.number(output)
    if not number:
        raise BackendUnavailable(f"{argv[0]} did not take the job: {output or 'no output'}")
    return number


def save(folder: Path, job: SubmittedJob) -> None:
    """Keep which job a suite is."""
    store.write_atomic(folder / store.JOB, json.dumps(dataclasses.asdict(job), indent=1) + "\n")


def of(folder: Path) -> SubmittedJob | None:
    """Return the job that a suite was submitted as; None for one that was not."""
    try:
        found = json.loads((folder / store.JOB).read_text())
        return SubmittedJob(**{**found, "together": tuple(found["together"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ResultsError(f"cannot read {folder / store.JOB}: {error}; move it away") from None


def starts(folder: Path) -> list[str]:
    """Return a line for each time that the job's script began: when, its number, its host."""
    return probes.read(folder / STARTS).splitlines()


def state_of(folder: Path) -> Asked | None:
    """Return a suite's job and how that is; None where it was not submitted."""
    if (job := of(folder)) is None:
        return None
    return job, _state(job)


def _state(job: SubmittedJob) -> JobState:
    try:
        scheduler: Scheduler = registry.require("schedulers", job.scheduler).make()
    except BackendUnavailable as error:
        return JobState(UNKNOWN, f"{error} (asked on {socket.gethostname()})")
    return scheduler.state(job.number)
