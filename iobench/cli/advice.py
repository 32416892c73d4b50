"""``iobench explain`` and ``predict``: from what a suite measured to settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from rich.table import Column, Table
from rich.text import Text

from iobench.advise.explain import Explanation, of_script
from iobench.advise.explain import explain as explained
from iobench.advise.findings import NOTHING, Finding
from iobench.advise.predict import Feed, Prediction, feeds, not_known
from iobench.advise.predict import predict as predicted
from iobench.advise.what_ifs import ACCELERATORS, WHAT_IFS
from iobench.analysis.results import SuiteResult, to_json
from iobench.analysis.suite import analyse
from iobench.cli.console import JSON, PATH, out, print_json
from iobench.core import accelerators
from iobench.report import feed_plot, numbers, terminal, words
from iobench.run import store

RESULTS = click.argument("results", type=PATH, default="results")


def _suite(results: Path) -> SuiteResult:
    found = store.find(results)
    return analyse(found.plan(), found.records())


@click.command()
@RESULTS
@JSON
def explain(results: Path, as_json: bool) -> None:
    """Explain why the cases of RESULTS are slow, and what cures it, most to gain first.

    \b
      iobench run myjob.toml && iobench explain results
      iobench explain results --json | jq '.findings[0]'

    Each cause comes with its figures in this suite, the settings to change, how many times faster
    training is expected to be (95 % limits from the measured ones; "not known" where no run of
    this suite can tell) and its source. Where a case loses nothing that way, it says so. A cause
    that cannot be decided names the run that would. docs/advice.md lists all causes.
    """
    found = explained(_suite(results))
    if as_json:
        print_json({"findings": [words.finding(f) for f in found.findings],
                    "unjudged": to_json(found.unjudged)})  # fmt: skip
    else:
        render(found)


def render(found: Explanation) -> None:
    """Print what was found, what needs no cure, and what could not be judged."""
    causes = [f for f in found.findings if f.cause != NOTHING]
    for group in words.grouped((f.text, f) for f in causes).values():
        _show(group)
    fine = words.grouped_advice([f for f in found.findings if f.cause == NOTHING])
    if fine:
        out.print(Text("Nothing to cure", style="bold green"))
    for who, text in fine:
        out.print(Text(f"  {who}: ", style="bold") + Text(text, style="not bold"), soft_wrap=True)
    missing = words.grouped((u.reason, (u.cause, u.case)) for u in found.unjudged)
    if missing:
        out.print(Text("Not judged", style="bold"))
    for reason, which in missing.items():
        cases = list(dict.fromkeys(case for _, case in which))
        of = ", ".join(dict.fromkeys(cause for cause, _ in which))
        more = f" and {len(cases) - 1} more" if cases[1:] else ""
        out.print(Text(f"  {of} ({cases[0]}{more}): {reason}", style="dim"), soft_wrap=True)
    if not found.findings:
        out.print("No cause is found: nothing of these results has been judged.")


def _show(group: list[Finding]) -> None:
    first = group[0]
    out.print(Text(f"{words.who([(f.case, f.cache) for f in group])}: ", style="bold")
              + Text(first.cause, style="yellow"), soft_wrap=True)  # fmt: skip
    for name, text in (
        ("symptom", first.symptom),
        ("evidence", words.evidence(first)),
        ("remedy", first.remedy),
        ("gain", words.gain(first.gain)),
        ("source", first.source),
    ):
        if text:
            out.print(Text(f"  {name:9}", style="dim") + Text(text), soft_wrap=True)


def _what_ifs() -> str:
    rows = [f"  {w.name + '=':13}{w.about}" for w in WHAT_IFS.values()]
    rows.append("  pipeline=    another pipeline of this suite (loader:format)")
    rows.append("  gpu-decode=  1: JPEGs decoded on the GPU, where a case of this suite did")
    return "\n".join(rows)


@click.command(
    help=f"""Predict training under changes, from the rates measured in RESULTS.

    \b
      iobench predict results                        the usual what-ifs of every case
      iobench predict results accelerator=h100       and how many H100s this mount feeds
      iobench predict results workers=8 cached=0.5 --case torch:jpeg
      iobench predict results accelerator=h100 --plot feeds.svg

    Each CHANGE is predicted alone:

    \b
{_what_ifs()}

    A rate is the tightest limit's. "95 % of rates" is what the spread of the measured rates makes
    of it, without the model's own error: fresh runs are outside more often than 1 in 20. "binds" is
    the limit before and after; "model" how far the same model is from training as measured, before
    the change.
    Accelerators are those of {accelerators.SOURCE}. docs/advice.md has the equations and what they
    leave out.
    """
)
@RESULTS
@click.argument("changes", nargs=-1, metavar="[CHANGE]...")
@click.option("--case", "label", default="", metavar="LABEL", help="Only this case.")
@click.option("--plot", type=PATH, metavar="FILE.svg", help="Draw what the mount and node feed.")
@JSON
def predict(
    results: Path, changes: tuple[str, ...], label: str, plot: Path | None, as_json: bool
) -> None:
    """Predict training under changes, from measured rates."""
    suite = _suite(results)
    found = predicted(suite, changes, label=label)
    asked = [v for name, _, v in (c.partition("=") for c in changes) if name == "accelerator"]
    rows = [f for f in feeds(suite) if f.accelerator in (asked or ACCELERATORS)]
    rows = [f for f in rows if not label or f.case == label]
    if of_script(suite) and not (asked or plot):  # the table's net need not be the script's
        rows = []
    if plot:
        store.write_atomic(plot, feed_plot.feeds(rows))
    if as_json:
        print_json({"predictions": to_json(found), "feeds": to_json(rows),
                    "not_known": not_known(suite, changes)})  # fmt: skip
        return
    if found:
        out.print(_predictions(found))
    else:
        out.print("Nothing can be predicted: a case needs the stages load (warm) and compute.")
    if asked or plot or not changes:
        for line in dict.fromkeys(_feed(f) for f in rows):
            out.print(Text(f"  {line}"), soft_wrap=True)
        if rows:
            out.print(Text(f"Accelerators: {accelerators.SOURCE}.", style="dim"))
    for line in _below(found, suite, changes):
        out.print(Text(line, style="dim"), soft_wrap=True)
    if plot:
        out.print(plot, soft_wrap=True)


def _below(
    found: list[Prediction], suite: SuiteResult, changes: tuple[str, ...]
) -> Iterator[str]:  # fmt: skip
    """Yield what is to be known of the predictions: notes, errors that were seen, what lacks."""
    yield from dict.fromkeys(f"{p.what.partition('=')[0]}: {p.note}" for p in found if p.note)
    checked = dict.fromkeys((p.what.partition("=")[0], p.validated) for p in found if p.validated)
    for name, error in checked:
        yield f"{name}: {error} (docs/validation.md)"
    yield from not_known(suite, changes)


def _predictions(found: list[Prediction]) -> Table:
    right = [Column(head, justify="right") for head in ("now/s", "then/s", "x")]
    named = [Column(head, overflow="fold") for head in ("pipeline", "", "what if")]
    table = terminal.plain_table(*named, *right, "95 % of rates", "binds", "model")
    rows = words.grouped((_row(p), p.what) for p in found)
    shown = ""
    for (case, cache, *figures), whats in rows.items():
        table.add_row("" if case == shown else case, cache, ", ".join(whats), *figures)
        shown = case
    return table


def _row(p: Prediction) -> tuple[str, ...]:
    """Return the cells of a prediction but for what it is of."""
    return (
        p.case,
        p.cache,
        numbers.value(p.now),
        numbers.value(p.rate),
        f"{p.gain.value:.2f}",
        numbers.bracketed(p.gain) or "too few repeats",
        p.after if p.after == p.before else f"{p.before} -> {p.after}",
        numbers.NONE if p.error is None else f"{100 * p.error:+.0f} %",
    )


def _feed(feed: Feed) -> str:
    if feed.unit == "bytes/s":
        supply, demand = (f"{x / 1e6:,.0f} MB/s" for x in (feed.supply.value, feed.demand))
    else:
        supply, demand = (f"{numbers.number(x)}/s" for x in (feed.supply.value, feed.demand))
    limits = numbers.limits(feed.count)
    count = f"{numbers.number(feed.count.value)}{f' ({limits})' if limits else ''}"
    return (
        f"{feed.what} {feed.cache} gives {supply} and feeds {count} {feed.accelerator} of "
        f"{feed.workload} (each {demand}) at AU {feed.least_au:.2f}"
    )
