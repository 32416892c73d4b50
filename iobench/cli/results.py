"""``iobench show``, ``report`` and ``compare``: what suites found."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Column, Table
from rich.text import Text

from iobench.analysis.compare import Comparison, compare_suites
from iobench.analysis.results import to_json
from iobench.analysis.suite import analyse
from iobench.cli.console import JSON, PATH, out, print_json
from iobench.report import numbers, publish, terminal
from iobench.run import store


@click.command()
@click.argument("results", type=PATH, default="results")
@JSON
def show(results: Path, as_json: bool) -> None:
    """Show the results of a suite: RESULTS is its folder, or a results root (its latest suite)."""
    found = store.find(results)
    analysis = analyse(found.plan(), found.records())
    if as_json:
        print_json(publish.document(analysis))
    else:
        terminal.render(analysis, out)


@click.command()
@click.argument("results", type=PATH, default="results")
def report(results: Path) -> None:
    """Write report.html, trials.csv and analysis.json of RESULTS again from its records."""
    found = store.find(results)
    publish.publish(found)
    out.print(found.folder / "report.html", soft_wrap=True)


@click.command()
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@JSON
def compare(a: Path, b: Path, as_json: bool) -> None:
    """Compare two suites, B with A, from the same or from different machines and dates.

    \b
      iobench compare results/20260101T100000Z-bench-io results/latest
      iobench compare node17/results node18/results

    Ratios are seconds per sample, B / A (above 1: B is slower), with unpaired intervals. The
    comparison is EXPLORATORY and gives no verdict; every difference between A and B is listed.
    """
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
