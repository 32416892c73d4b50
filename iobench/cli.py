"""The command line: parses, calls, prints and exits; nothing else does."""

from __future__ import annotations

import datetime
import functools
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

import iobench
from iobench import (
    catalogue,
    limits,
    preflight,
    prepare,
    publish,
    scheduler,
    spec,
    starting,
    store,
)
from iobench import convert as conversion
from iobench import dataset as datasets
from iobench import doctor as medical
from iobench import plan as planning
from iobench.errors import IobenchError, SpecError, environment
from iobench.launch import Settings
from iobench.report import terminal
from iobench.report.progress import Reporter, duration

INTERRUPTED = 130
#: Where images are, as everything that makes or runs them says by default.
IMAGES = Path("images")
_JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable output on stdout.")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit with 1, which says that a trial failed


_out = _Console(highlight=False)
_err = _Console(stderr=True, highlight=False)


def main() -> None:
    """Run the command line; the exit status is documented in ``iobench --help``."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale without a character gets a "?"
            stream.reconfigure(errors="replace")
    try:
        status = cli(standalone_mode=False)
    except IobenchError as error:
        status = _complain(str(error))
    except BrokenPipeError:  # `iobench list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except OSError as error:
        status = _complain(environment(error))
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "iobench"
        status = _complain(f"{error.format_message()} (see `{where} --help`)")
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted; the same command goes on where it stopped")
        status = INTERRUPTED
    sys.exit(status if isinstance(status, int) else 0)


def _complain(message: str) -> int:
    sys.stderr.write(f"iobench: {' '.join(message.split())}\n")
    return 2


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(iobench.__version__, prog_name="iobench")
def cli() -> None:
    """Why is this training run slow: storage, preprocessing, compute, network or container?

    \b
    First steps:
      iobench doctor                what can be measured here, and what is missing
      iobench run                   the default suite, 15 minutes, nothing to configure
      iobench show results          what limits each pipeline, which is fastest, by how much
      iobench run --data TREE       the same on your own ImageFolder tree

    \b
    Exit status:
      0    fine
      1    a trial failed or was invalid (its record and all others are kept)
      2    your input or environment: one line on stderr says what to do
      130  interrupted (a partial report is kept; go on with `iobench run --resume`)
    """


@cli.command()
@click.argument("path", type=click.Path(path_type=Path), default=".")
@_JSON
def doctor(path: Path, as_json: bool) -> int:
    """What can and cannot be measured on this machine, for data under PATH, and why."""
    checks = medical.examine(path)
    if as_json:
        _print_json([vars(c) for c in checks])
        return 0
    table = Table(box=None, pad_edge=False, show_header=False)
    for check in checks:
        mark = "[green]ok[/]" if check.ok else "[yellow]no[/]"
        table.add_row(mark, check.name, check.detail)
        if not check.ok and check.remedy:
            table.add_row("", "", f"[dim]-> {check.remedy}[/]")
    _out.print(table)
    return 0


# -- data ------------------------------------------------------------------------------------


@cli.group()
def data() -> None:
    """Make, convert, verify and describe datasets.

    \b
      iobench data make imagenet-like /scratch/me/set --samples 5000
      iobench data convert /scratch/me/set lmdb hdf5 tar
      iobench data verify /scratch/me/set
    """


@data.command("make")
@click.argument("recipe")
@click.argument("root", type=click.Path(path_type=Path))
@click.option("--samples", type=click.IntRange(min=1), help="How many [the recipe's number].")
@click.option("--seed", type=int, help="Same seed, same bytes, on any CPU [the recipe's seed].")
@click.option("--workers", type=click.IntRange(min=1), help="Processes [all usable cores].")
@_JSON
def data_make(
    recipe: str,
    root: Path,
    samples: int | None,
    seed: int | None,
    workers: int | None,
    as_json: bool,
) -> int:
    """Make the samples of RECIPE (a name in datasets/, or a .toml file) as JPEGs under ROOT.

    A killed run goes on where it was; a finished dataset is left as it is.
    """
    with Reporter(_err) as reporter:
        made = datasets.make(
            recipe,
            root,
            samples=samples,
            seed=seed,
            workers=workers,
            progress=lambda i, n: reporter.step("making samples", i, n),
        )
    return _describe(made, as_json)


@data.command("convert")
@click.argument("root", type=click.Path(path_type=Path))
@click.argument("forms", nargs=-1, required=True)
@click.option("--option", "-o", multiple=True, help="A format's option, such as chunk=64.")
def data_convert(root: Path, forms: tuple[str, ...], option: tuple[str, ...]) -> int:
    """Convert the dataset at ROOT to FORMS: lmdb, hdf5, tar, lmdb-raw, hdf5-raw."""
    found = datasets.locate(root)
    options = dict(_option(text) for text in option)
    with Reporter(_err) as reporter:
        for form in forms:
            name, _, content = form.partition("-")
            path = conversion.convert(
                found,
                name,
                content=content or "jpeg",
                options=options,
                progress=functools.partial(reporter.step, f"converting to {form}"),
            )
            reporter.say(f"{form}: {path}")
    return 0


@data.command("verify")
@click.argument("root", type=click.Path(path_type=Path))
@click.argument("forms", nargs=-1)
@_JSON
def data_verify(root: Path, forms: tuple[str, ...], as_json: bool) -> int:
    """Prove by digest that every form (or FORMS) of the dataset at ROOT holds the same samples."""
    found = datasets.locate(root)
    with Reporter(_err) as reporter:
        rows = conversion.verify(
            found, list(forms) or None, progress=lambda i, n: reporter.step("verifying", i, n)
        )
    if as_json:
        _print_json([vars(row) for row in rows])
    else:
        for row in rows:
            _out.print(f"{row.form}: {'same samples and labels' if row.ok else row.detail}")
    return 0 if all(row.ok for row in rows) else 1


@data.command("info")
@click.argument("root", type=click.Path(path_type=Path))
@_JSON
def data_info(root: Path, as_json: bool) -> int:
    """Describe the dataset at ROOT: samples, sizes, forms, what was left out."""
    return _describe(datasets.locate(root), as_json)


def _describe(found: Any, as_json: bool) -> int:
    facts = datasets.info(found)
    if as_json:
        _print_json(facts)
    else:
        for key, value in facts.items():
            _out.print(f"{key}: {value}")
    return 0


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise SpecError(f"option {text!r} is not key=value")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


# -- run, show, report, list -----------------------------------------------------------------


@cli.command()
@click.argument("spec_name", metavar="[SPEC]", default="bench-io")
@click.option("--data", type=click.Path(path_type=Path), help="ImageFolder tree, or a dataset.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=".", help="Where data goes: OUT/data."
)
@click.option("--results", type=click.Path(path_type=Path), default="results", show_default=True)
@click.option("--budget", help="Time for the suite: 15m, 4h. More time buys more pairs.")
@click.option("--in-place", is_flag=True, help="Read the tree where it is (EXPLORATORY).")
@click.option("--resume", is_flag=True, help="Go on with RESULTS (or its latest suite).")
@click.option("--dry-run", is_flag=True, help="Validate, print the plan and its time, run nothing.")
@_JSON
def run(
    spec_name: str,
    data: Path | None,
    out: Path,
    results: Path,
    budget: str | None,
    in_place: bool,
    resume: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run SPEC (a .toml file, or a name from `iobench list`; default bench-io).

    \b
      iobench run                                        the default suite
      iobench run --budget 4h                            more pairs, narrower intervals
      iobench run --data /scratch/imagenet --out /scratch/me
      iobench run --resume                               after a kill or Ctrl-C
    """
    with Reporter(_err) as reporter:
        if resume:
            suite_store = store.find(results)
            wanted = spec.parse(suite_store.plan().spec, where=str(suite_store.folder))
        else:
            wanted = spec.load(spec_name)
            planning.contrasts(wanted, spec.expand(wanted), {})  # judged before anything is made
            limits.check(spec.expand(wanted))
            seconds = spec.seconds(budget or wanted.budget)
            found = prepare.dataset_for(
                wanted,
                data=data,
                out=out,
                in_place=in_place,
                say=reporter.say,
                progress=reporter.step,
            )
            wanted, notes = prepare.ready(wanted, found, results, reporter.say, reporter.step)
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            plan = scheduler.make_plan(wanted, found, seconds, now, notes)
            for line in preflight.before(plan.cases, found):
                reporter.say(f"warning: {line}")
            reporter.say(
                f"suite {wanted.name}: {len(plan.cases)} cases, estimated time "
                f"{duration(scheduler.estimate_s(wanted, plan))} (budget {duration(seconds)})"
            )
            if dry_run:
                for trial in plan.trials:
                    _out.print(trial.id)
                return 0
            suite_store = store.create(results, wanted.name)
            suite_store.save_plan(plan)
        return _run(suite_store, wanted, reporter, as_json)


def _run(suite_store: store.Store, wanted: spec.Spec, reporter: Reporter, as_json: bool) -> int:
    settings = Settings(
        limit_s=wanted.limit_s,
        compute_s=wanted.compute_s,
        allow_drop_caches=wanted.allow_drop_caches,
        images=starting.images_for(suite_store.plan().cases, IMAGES),
    )
    interrupted = False
    with suite_store.lock():
        suite = scheduler.Suite(suite_store, wanted, settings, reporter.trial)
        try:
            suite.run()
        except KeyboardInterrupt:
            interrupted = True
        analysis = publish.publish(suite_store)
    if as_json:
        _print_json(analysis)
    else:
        terminal.render(analysis, _out)
        _out.print(f"\nreport: {suite_store.folder / 'report.html'}", soft_wrap=True)
    if interrupted:
        _complain(f"interrupted; go on with `iobench run --resume --results {suite_store.folder}`")
        return INTERRUPTED
    if analysis["complete"]:
        return 0
    unusable = suite_store.unusable()
    if unusable:
        _complain(
            f"{len(unusable)} trials gave no usable result, the first {unusable[0].trial.id}: "
            f"{unusable[0].status}, {'; '.join(unusable[0].reasons)}; all records are kept: mend "
            f"that, then `iobench run --resume --results {suite_store.folder}`"
        )
    return 1


@cli.command()
@click.argument("results", type=click.Path(path_type=Path), default="results")
@_JSON
def show(results: Path, as_json: bool) -> int:
    """What a suite found: RESULTS is its folder, or a results root (its latest suite)."""
    found = store.find(results)
    from iobench.analysis import analyse

    analysis = analyse(found.plan(), found.records())
    if as_json:
        _print_json(analysis)
    else:
        terminal.render(analysis, _out)
    return 0


@cli.command()
@click.argument("results", type=click.Path(path_type=Path), default="results")
def report(results: Path) -> int:
    """Write report.html, trials.csv and analysis.json of RESULTS again from its raw records."""
    found = store.find(results)
    publish.publish(found)
    _out.print(found.folder / "report.html", soft_wrap=True)
    return 0


@cli.command("list")
@_JSON
def list_(as_json: bool) -> int:
    """Every member of every axis, the pipelines, the stages and the shipped specs."""
    tables = catalogue.tables()
    if as_json:
        _print_json(tables)
        return 0
    for title, rows in tables.items():
        table = Table(title=title, title_justify="left", box=None, show_header=False)
        for name, summary in rows.items():
            table.add_row(name, summary)
        _out.print(table)
    return 0


if __name__ == "__main__":
    main()
