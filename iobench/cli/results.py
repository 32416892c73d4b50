"""``iobench show``, ``report`` and ``compare``: what suites found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Column, Table
from rich.text import Text

from iobench.analysis import rates
from iobench.analysis.compare import Comparison, compare_suites
from iobench.analysis.results import to_json
from iobench.analysis.suite import analyse
from iobench.cli.console import JSON, PATH, out, print_json
from iobench.report import csv, numbers, publish, terminal, tune_words
from iobench.run import store


@click.command()
@click.argument("results", type=PATH, default="results")
@JSON
def show(results: Path, as_json: bool) -> None:
    """Show the results of a suite: RESULTS is its folder, or a results root (its latest suite)."""
    found = store.find(results)
    plan, records = found.plan(), found.records()
    analysis = analyse(plan, records)
    if as_json:
        print_json(publish.document(analysis))
    else:
        tuned = tune_words.answer_of(found, plan, records)
        terminal.render(analysis, out, [tune_words.title(tuned)] if tuned else ())


@click.command()
@click.argument("results", type=PATH, default="results")
def report(results: Path) -> None:
    """Write report.html, trials.csv, rates.csv and analysis.json of RESULTS again."""
    found = store.find(results)
    publish.publish(found)
    out.print(found.folder / "report.html", soft_wrap=True)


@click.command()
@click.argument("a", type=PATH)
@click.argument("b", type=PATH, required=False)
@click.option("--by", metavar="KEYS", help="Rates of one suite, by these settings: loader,format.")
@click.option("--csv", "as_csv", is_flag=True, help="With --by: the table as CSV on stdout.")
@JSON
def compare(a: Path, b: Path | None, by: str | None, as_csv: bool, as_json: bool) -> None:
    """Compare two suites, B with A, from the same or from different machines and dates.

    With --by, show the rate and the limit of every pipeline of one suite instead.

    \b
      iobench compare results/20260101T100000Z-bench-io results/latest
      iobench compare node17/results node18/results
      iobench compare results --by loader,format

    Ratios are seconds per sample, B / A (above 1: B is slower), with unpaired intervals. The
    comparison is EXPLORATORY and gives no verdict; every difference between A and B is listed.
    """
    if by is not None:
        if b is not None:
            raise click.UsageError("--by takes one results folder; leave the second one out")
        _rates(a, by.replace(" ", "").split(","), as_csv=as_csv, as_json=as_json)
        return
    if b is None or as_csv:
        need = "--csv needs --by KEYS" if as_csv else "name two results folders, or one and --by"
        raise click.UsageError(f"{need}, such as `iobench compare {a} --by loader,format`")
    first, second = store.find(a), store.find(b)
    found = compare_suites(
        (first.plan(), first.records()),
        (second.plan(), second.records()),
        folders=(str(first.folder), str(second.folder)),
    )
    if as_json:
        print_json(to_json(found))
    else:
        _render(found)


def _rates(results: Path, keys: Sequence[str], *, as_csv: bool, as_json: bool) -> None:
    """Print the rate and the limit of every pipeline of a suite."""
    found = store.find(results)
    table = rates.by(analyse(found.plan(), found.records()), keys)
    if as_json:
        print_json(to_json(table))
    elif as_csv:
        click.echo(csv.rates_text(table), nl=False)
    else:
        host = f", host {table.host}" if table.host else ""
        out.print(Text(f"{table.name}, {table.created}{host}: {table.location}"), soft_wrap=True)
        out.print(terminal.rates(table))
        if table.note:
            out.print(Text(table.note, style="yellow"), soft_wrap=True)


def _render(found: Comparison) -> None:
    for name, suite in (("A", found.a), ("B", found.b)):
        host = f", host {suite.host}" if suite.host else ""
        of = f"{suite.name}, {suite.created}, iobench {suite.version}{host}"
        text = f"{name}: {of} ({suite.folder})"
        out.print(Text(text), soft_wrap=True)
    out.print(_table(found))
    for difference in found.differences:
        who = f" ({', '.join(difference.cases)})" if difference.cases else ""
        out.print(Text(f"  differs: {difference.text}{who}"), soft_wrap=True)
    if not found.differences:
        same = "the fingerprints do not differ" if found.facts else "no fingerprint is in both"
        out.print(f"  {same}")
    for name, labels in found.only_in.items():
        if labels:
            out.print(Text(f"  only in {name.upper()}: {', '.join(labels)}"), soft_wrap=True)
    out.print(Text(f"EXPLORATORY: {found.note}"), soft_wrap=True)


def _table(found: Comparison) -> Table:
    rates = [Column(head, justify="right") for head in ("A /s", "B /s")]
    named = Column("case", overflow="fold")
    table = terminal.plain_table(named, "stage", *rates, "time a sample, B / A", "trials")
    for row in found.rows:
        ratio = row.ratio
        spread = numbers.bracketed(ratio, numbers.ratio3)
        order = {False: "  other order of samples", None: ""}.get(row.same_order, "")
        same = row.case == row.case_b
        table.add_row(
            row.case if same else f"{row.case} | {row.case_b}",
            f"{row.stage} {row.cache.strip('-')}",
            numbers.number(row.samples_per_s["a"]),
            numbers.number(row.samples_per_s["b"]),
            f"{numbers.ratio3(ratio.value)} {spread}".rstrip() + order,
            f"{row.trials['a']}, {row.trials['b']}",
        )
    return table
