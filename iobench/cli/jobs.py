"""``iobench submit`` and ``iobench status``: suites as jobs of a batch system."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from iobench.cli.console import JSON, PATH, err, out, print_json
from iobench.cli.run import RESULTS, typed, with_places
from iobench.core import registry, units
from iobench.core.cases import Case
from iobench.core.errors import BackendUnavailable, SpecError
from iobench.core.jobs import JobRequest
from iobench.plan import foresee
from iobench.report.numbers import duration
from iobench.run import jobs, status, store
from iobench.run.job_script import JobExtras
from iobench.spec import load
from iobench.spec.load import expand

#: Options of the suite itself, for the `iobench run` in the job.
_RUN = ("data", "out", "images", "image", "budget", "in_place")
SHORTEST_S = 10.0


@click.command()
@click.argument("specs", metavar="[SPEC]...", nargs=-1)
@click.option("--nodes", type=click.IntRange(1), help="Default: as many as the spec's cases want.")
@click.option("--time", "limit", help="The job's limit, such as 1h; what is left goes on after it.")
@click.option(
    "--cores",
    type=click.IntRange(1),
    help="Cores of each node, beside other jobs; default: whole nodes.",
)
@click.option("--partition", "--queue", "queue", default="", help="Partition (PBS, Flux: queue).")
@click.option("--account", default="", help="Account (Flux: bank).")
@click.option("--qos", default="", help="Quality of service.")
@click.option("--constraint", default="", help="Features of the nodes.")
@click.option("--module", "modules", multiple=True, help="Load a module first; repeatable.")
@click.option("--setup", "lines", multiple=True, help="Line of shell after those; repeatable.")
@click.option(
    "--line", "extra", multiple=True, help="Directive as it is, such as --line=--mail-type=END."
)
@click.option("--repeat", type=click.IntRange(1), default=1, help="How many suites of each spec.")
@click.option("--scheduler", default="", help="slurm, pbs or flux; default: what is here.")
@with_places
@RESULTS
@click.option("--resume", is_flag=True, help="Submit the script in RESULTS again, to go on.")
@click.option("--dry-run", is_flag=True, help="Print the script; make and submit nothing.")
@JSON
def submit(
    specs: tuple[str, ...], limit: str | None, scheduler: str, repeat: int, results: Path,
    resume: bool, dry_run: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Submit SPEC to the batch system; its script is kept with the results.

    \b
      iobench submit bench-io --time 1h                     one node of its own
      iobench submit distributed --nodes 2 --time 1h --account me --partition batch
      iobench submit --time 1h --module apptainer --dry-run
      iobench submit a.toml b.toml --repeat 3 --time 1h     six suites, an array of six elements
      iobench submit --resume                               after a job that was killed

    Each suite has a folder of its own in RESULTS. When the time runs out the suite is interrupted,
    the job goes back into the queue and the suite goes on: `iobench status` shows how far it is.
    """
    if resume:
        folder = store.folder_at(results)
        _tell([folder], jobs.again(folder), as_json)
        return
    names = specs or ("distributed" if (options["nodes"] or 1) > 1 else "bench-io",)
    if limit is None:
        raise SpecError("--time is missing: the job's limit, such as --time 1h")
    time_s = _limit_s(limit)
    if time_s < SHORTEST_S:
        raise SpecError(f"--time {limit} is too short for any trial; allowed: {SHORTEST_S:g}s on")
    name = jobs.scheduler_here(scheduler)
    texts, cases = _judged(names, time_s, options)
    texts = [text for text in texts for _ in range(repeat)]
    nodes, ranks = jobs.geometry(cases, options["nodes"])
    if nodes > (widest := max(case.nodes for case in cases)):
        err.print(f"note: no case uses more than {widest} of the {nodes} nodes", soft_wrap=True)
    results = results.absolute()
    request = JobRequest(
        name=f"iobench-{texts[0].name}", nodes=nodes, ranks=ranks, time_s=round(time_s),
        cores=options["cores"] or 0,
        extra=tuple(_directive(line) for line in options["extra"]),
        **{key: options[key] for key in ("queue", "account", "qos", "constraint")},
    )  # fmt: skip
    around = JobExtras(os.getcwd(), options["modules"], options["lines"])
    passed_on = [word for key, words in typed().items() if key in _RUN for word in words]
    if dry_run:
        folders = [results / f"<time>-{text.name}" for text in texts]
        for suites in jobs.in_jobs(name, folders):
            click.echo(jobs.written(name, request, suites, passed_on, around))
        return
    made = jobs.submit(name, request, texts, results, passed_on, around)
    job = jobs.of(made[0])
    assert job is not None
    _tell(made, job, as_json)


def _judged(
    names: tuple[str, ...], time_s: float, options: dict[str, Any]
) -> tuple[list[jobs.SpecText], list[Case]]:
    """Judge the specs as far as it can be done here; return their texts and all their cases."""
    texts: list[jobs.SpecText] = []
    cases: list[Case] = []
    for name in names:
        text, where = load.read(name)
        try:
            keys = {key: options[key] for key in ("image", "data", "budget")}
            foreseen = foresee.judged(text, where, **keys)
            spec, notes = foreseen.spec, list(foreseen.notes)
        except BackendUnavailable as error:
            err.print(f"note: {error}: the job must find it on its own node", soft_wrap=True)
            spec, notes = load.parse_text(text, where, image=options["image"]), []
        budget_s = units.seconds(options["budget"] or spec.budget)
        if budget_s > time_s:
            err.print(
                f"note: the budget of {spec.name} ({duration(budget_s)}) is longer than a job's "
                f"{duration(time_s)}: it goes on in further ones, about "
                f"{math.ceil(budget_s / time_s)} in all",
                soft_wrap=True,
            )
        texts.append(jobs.SpecText(spec.name, text))
        found = expand(spec)
        for runtime in dict.fromkeys(case.runtime for case in found):
            if reason := registry.unavailable("runtimes", runtime):
                notes.append(
                    f"runtime {runtime} does not run here ({reason}): the job's node must have it, "
                    "or get it by --module or --setup"
                )
        for note in notes:
            err.print(f"note: {note}", soft_wrap=True)
        cases += found
    return texts, cases


def _limit_s(text: str) -> float:
    """Return a job's limit in seconds, written as ``90m`` or as batch systems do, ``1:30:00``.

    Raises SpecError for anything else, a number alone too, which is minutes to Slurm.
    """
    if match := re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return units.seconds(f"{((days * 24 + hours) * 60 + minutes) * 60 + seconds}", "--time")
    if text.strip().isdecimal():
        raise SpecError(f"--time {text} has no unit: write {text}s, {text}m or {text}h")
    return units.seconds(text, "--time")


def _directive(line: str) -> str:
    """Return a directive without the batch system's mark; raises SpecError for several lines."""
    if not line.isprintable():
        raise SpecError(f"--line {line!r} is not one line; give each by a --line of its own")
    return re.sub(r"^#\s*(SBATCH|PBS|flux:)\s*", "", line)


def _tell(folders: list[Path], job: jobs.SubmittedJob, as_json: bool) -> None:
    """Say what was submitted, and how to follow it."""
    if as_json:
        print_json({**dataclasses.asdict(job), "folders": [str(folder) for folder in folders]})
        return
    for folder in folders:
        own = jobs.of(folder) or job
        out.print(f"job {own.number}: {folder / jobs.SCRIPT}", soft_wrap=True, highlight=False)
    where = folders[0] if len(folders) == 1 else folders[0].parent
    out.print(f"`iobench status {where}` shows how far it is", soft_wrap=True, highlight=False)


@click.command("status")
@click.argument("results", type=PATH, default="results")
@JSON
def status_(results: Path, as_json: bool) -> None:
    """Show how far a suite is, and its job: RESULTS is its folder, or a results root (its latest).

    A results root also shows the suites that were submitted together with it, and others whose
    jobs wait or run.
    """
    found = status.together(results)
    if as_json:
        print_json([dataclasses.asdict(each) for each in found])
        return
    for each in found:
        for line in _lines(each):
            out.print(Text(line), soft_wrap=True)


def _lines(found: status.SuiteProgress) -> list[str]:
    """Return a suite's state in a few lines."""
    ended = [f"{n} {name}" for name, n in sorted(found.attempts.items())]
    counts = ", ".join(ended) or "none has ended"
    lines = [f"{found.state}: {found.folder}"]
    if found.planned:
        left = "" if found.state == status.COMPLETE else f", about {duration(found.left_s)} left"
        left += ", then comparisons that are not planned yet" if found.growing else ""
        lines.append(f"  trials: {found.usable} of {found.planned} usable{left} ({counts})")
    if found.now:
        lines.append(f"  now: {found.now}")
    if found.by:
        lines.append(f"  by: {found.by}")
    if found.job and found.job_state:
        times = f", begun {len(found.starts)} times" if len(found.starts) > 1 else ""
        lines.append(
            f"  job: {found.job.scheduler} {found.job.number}, {found.job_state.words}{times}"
        )
    if found.next:
        lines.append(f"  next: {found.next}")
    return lines
