"""The command line: parses, calls, prints and exits; nothing else does."""

from __future__ import annotations

import functools
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click
from rich.table import Table

import iobench
from iobench import catalogue, cli_compare, publish, store, tools
from iobench import convert as conversion
from iobench import dataset as datasets
from iobench import doctor as medical
from iobench.cli_console import INTERRUPTED, JSON, complain, err, out, print_json
from iobench.cli_image import image
from iobench.cli_run import run
from iobench.errors import IobenchError, SpecError, environment
from iobench.report import terminal
from iobench.report.progress import Reporter


def main() -> None:
    """Run the command line; the exit status is documented in ``iobench --help``."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a locale without a character gets a "?"
            stream.reconfigure(errors="replace")
    try:
        status = cli(standalone_mode=False)
    except IobenchError as error:
        status = complain(str(error))
    except BrokenPipeError:  # `iobench list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    except OSError as error:
        status = complain(environment(error))
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "iobench"
        status = complain(f"{error.format_message()} (see `{where} --help`)")
    except (KeyboardInterrupt, click.Abort):
        complain("interrupted; the same command goes on where it stopped")
        status = INTERRUPTED
    sys.exit(status if isinstance(status, int) else 0)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(iobench.__version__, prog_name="iobench")
def cli() -> None:
    """Why is this training run slow: storage, preprocessing, compute, network or container?

    \b
    First steps:
      iobench doctor                what can be measured here, and what is missing
      iobench run                   the default suite, 25 minutes, nothing to configure
      iobench show results          what limits each pipeline, which is fastest, by how much
      iobench run --data TREE       the same on your own ImageFolder tree

    \b
    Exit status:
      0    fine
      1    a trial failed or was invalid (its record and all others are kept)
      2    your input or environment: one line on stderr says what to do
      130  interrupted (a partial report is kept; go on with `iobench run --resume`)
    """
    tools.extend_path()


cli.add_command(image)
cli.add_command(run)


@cli.command()
@click.argument("path", type=click.Path(path_type=Path), default=".")
@JSON
def doctor(path: Path, as_json: bool) -> int:
    """What can and cannot be measured on this machine, for data under PATH, and why."""
    checks = medical.examine(path)
    if as_json:
        print_json([vars(c) for c in checks])
        return 0
    table = Table(box=None, pad_edge=False, show_header=False)
    for check in checks:
        mark = "[green]ok[/]" if check.ok else "[yellow]no[/]"
        table.add_row(mark, check.name, check.detail)
        if not check.ok and check.remedy:
            table.add_row("", "", f"[dim]-> {check.remedy}[/]")
    out.print(table)
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
@JSON
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
    with Reporter(err) as reporter:
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
    """Convert the dataset at ROOT to FORMS: lmdb, leveldb, hdf5, tar; lmdb-raw, hdf5-float ..."""
    found = datasets.locate(root)
    options = dict(_option(text) for text in option)
    with Reporter(err) as reporter:
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
@JSON
def data_verify(root: Path, forms: tuple[str, ...], as_json: bool) -> int:
    """Prove by digest that every form (or FORMS) of the dataset at ROOT holds the same samples."""
    found = datasets.locate(root)
    with Reporter(err) as reporter:
        rows = conversion.verify(
            found, list(forms) or None, progress=lambda i, n: reporter.step("verifying", i, n)
        )
    if as_json:
        print_json([vars(row) for row in rows])
    else:
        for row in rows:
            out.print(f"{row.form}: {'same samples and labels' if row.ok else row.detail}")
    return 0 if all(row.ok for row in rows) else 1


@data.command("info")
@click.argument("root", type=click.Path(path_type=Path))
@JSON
def data_info(root: Path, as_json: bool) -> int:
    """Describe the dataset at ROOT: samples, sizes, forms, what was left out."""
    return _describe(datasets.locate(root), as_json)


def _describe(found: Any, as_json: bool) -> int:
    facts = datasets.info(found)
    if as_json:
        print_json(facts)
    else:
        for key, value in facts.items():
            out.print(f"{key}: {value}")
    return 0


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise SpecError(f"option {text!r} is not key=value")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


# -- show, report, list ----------------------------------------------------------------------


@cli.command()
@click.argument("results", type=click.Path(path_type=Path), default="results")
@JSON
def show(results: Path, as_json: bool) -> int:
    """What a suite found: RESULTS is its folder, or a results root (its latest suite)."""
    found = store.find(results)
    from iobench.analysis import analyse

    analysis = analyse(found.plan(), found.records())
    if as_json:
        print_json(analysis)
    else:
        terminal.render(analysis, out)
    return 0


@cli.command()
@click.argument("results", type=click.Path(path_type=Path), default="results")
def report(results: Path) -> int:
    """Write report.html, trials.csv and analysis.json of RESULTS again from its raw records."""
    found = store.find(results)
    publish.publish(found)
    out.print(found.folder / "report.html", soft_wrap=True)
    return 0


@cli.command("list")
@JSON
def list_(as_json: bool) -> int:
    """Every member of every axis, the pipelines, the stages and the shipped specs."""
    tables = catalogue.tables()
    if as_json:
        print_json(tables)
        return 0
    for title, rows in tables.items():
        table = Table(title=title, title_justify="left", box=None, show_header=False)
        for name, summary in rows.items():
            table.add_row(name, summary)
        out.print(table)
    return 0


cli.add_command(cli_compare.compare)


if __name__ == "__main__":
    main()
