"""``iobench audit``: whether every loader reads every sample once, as real runs show it."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from iobench.cli.console import JSON, complain, out, print_json
from iobench.core import registry
from iobench.core.errors import SpecError
from iobench.run import audit as audits
from iobench.worker.audit import CHECKS


@click.command()
@click.argument("loaders", nargs=-1)
@click.option(
    "--form", "forms", multiple=True, help="A stored form, such as lmdb-raw: these alone."
)
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
@JSON
def audit(loaders: tuple[str, ...], forms: tuple[str, ...], markdown: bool, as_json: bool) -> int:
    """Run small epochs through every loader, format and decoder that is installed, and judge them.

    LOADERS: these alone.  Exit status 1 where a check fails.  Then what their libraries' own
    defaults, which iobench does not use, do with an epoch: each is run, and the samples counted.

    \b
      once        every sample once an epoch, in whole batches, with its label
      ends        what happens to samples that fill no batch
      reshuffled  the next epoch is in another order
      ranks       two ranks have equal shares and nothing in common
      errors      a sample that is no JPEG ends the epoch with an error that names it
      killed      a killed worker ends the epoch with an error, or loses nothing
      pixels      at most 2 grey levels from the reference
    """
    wanted = loaders or tuple(n for n in registry.names("loaders") if n != "null")
    for name in wanted:
        registry.load("loaders", name)
    for form in forms:
        _check(form)
    with tempfile.TemporaryDirectory(prefix="iobench-audit-") as folder:
        say = (lambda line: print(line, file=sys.stderr)) if sys.stderr.isatty() else lambda _: None
        answers = list(audits.audit(Path(folder), wanted, say, only=forms))
        defaults = list(audits.library_defaults(Path(folder), wanted, say))
    if as_json:
        print_json(
            {
                "pipelines": [dataclasses.asdict(answer) for answer in answers],
                "library_defaults": [dataclasses.asdict(default) for default in defaults],
            }
        )
    else:
        _show(answers, markdown)
        _show_defaults(defaults, markdown)
    failed = [answer for answer in answers if answer.failed]
    for answer in failed:
        for check in answer.failed:
            found = answer.checks.get(check, "not reached")
            complain(f"{answer.name}: {check}: {found}")
    return 1 if failed else 0


def _check(form: str) -> None:
    """Raise SpecError unless a format can be stored so."""
    name = form.partition("-")[0]
    known = registry.load("formats", name).stored_forms(name)
    if form not in known:
        raise SpecError(f"--form {form}: format {name!r} is stored as {' or '.join(known)}")


def _show(answers: Sequence[audits.Audited], markdown: bool) -> None:
    """Print a row a pipeline, then the versions of all libraries and what could not be asked."""
    asked = [answer for answer in answers if not answer.absent]
    _table(["pipeline", *CHECKS], list(map(_cells, asked)), markdown)
    known = {d: v for answer in asked for d, v in answer.versions.items() if v}
    print(f"Versions: {', '.join(f'{name} {known[name]}' for name in sorted(known))}.")
    for reason, names in _absent(answers).items():
        print(f"Not here: {', '.join(names)}: {reason}")


def _show_defaults(defaults: Sequence[audits.ShownDefault], markdown: bool) -> None:
    """Print a row a default of a library: what was seen, and what avoids it."""
    rows = [
        [f"{each.default}, {each.version}", each.shown, each.instead]
        for each in defaults
        if not each.absent
    ]
    if rows:
        print()
        _table(["library default", "a real run", "instead"], rows, markdown)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool) -> None:
    if markdown:
        lines = [heads, ["---"] * len(heads), *rows]
        print("\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n")
        return
    table = Table(*heads, box=None)
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _absent(answers: Sequence[audits.Audited]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for answer in answers:
        if answer.absent:
            found.setdefault(answer.absent, []).append(answer.name)
    return found


def _cells(answer: audits.Audited) -> list[str]:
    """Return the row of a pipeline: yes, no, n/a, a note, or that a hang left a check out."""
    marks = []
    for check in CHECKS:
        text = answer.checks.get(check, "not reached")
        words = "n/a" if text.startswith("n/a") else text.removeprefix("note: ") or "yes"
        wrong = check in answer.checks and check in answer.failed
        no = "**no**: hangs" if text.startswith("hangs") else "**no**"
        marks.append(no if wrong else words)
    return [answer.name, *marks]
