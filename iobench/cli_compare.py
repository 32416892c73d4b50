"""``iobench compare A B``: two results folders side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from iobench import store
from iobench.cli_console import JSON, out, print_json
from iobench.report import words


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@JSON
def compare(a: Path, b: Path, as_json: bool) -> int:
    """Two suites side by side: B against A, of one machine and date or of two.

    \b
      iobench compare results/20260101T100000Z-bench-io results/latest
      iobench compare node17/results node18/results

    Ratios are seconds a sample, B / A (above 1: B is slower), with unpaired intervals: EXPLORATORY,
    no verdict, because anything may have changed in between. What did is listed.
    """
    from iobench.compare import load

    document = load(store.find(a), store.find(b))
    if as_json:
        print_json(document)
    else:
        _render(document)
    return 0


def _render(document: Mapping[str, Any]) -> None:
    for name in ("a", "b"):
        suite = document[name]
        text = f"{name.upper()}: {suite['name']}, {suite['created']}, iobench {suite['version']}"
        out.print(Text(f"{text} ({suite['folder']})"), soft_wrap=True)
    out.print(_table(document))
    for difference in document["differences"]:
        who = f" ({', '.join(difference['cases'])})" if difference["cases"] else ""
        out.print(Text(f"  differs: {difference['text']}{who}"), soft_wrap=True)
    if not document["differences"]:
        out.print("  the fingerprints do not differ")
    for name, labels in document["only_in"].items():
        if labels:
            out.print(Text(f"  only in {name.upper()}: {', '.join(labels)}"), soft_wrap=True)
    out.print(Text(f"EXPLORATORY: {document['note']}"), soft_wrap=True)


def _table(document: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column("case", overflow="fold")
    table.add_column("stage")
    for head in ("A /s", "B /s"):
        table.add_column(head, justify="right")
    table.add_column("time a sample, B / A")
    table.add_column("trials")
    for row in document["rows"]:
        ratio = row["ratio"]
        spread = words.bracketed(ratio)
        order = {False: "  other order of samples", None: ""}.get(row["same_order"], "")
        same = row["case"] == row["case_b"]
        table.add_row(
            row["case"] if same else f"{row['case']} | {row['case_b']}",
            f"{row['stage']} {row['cache'].strip('-')}",
            words.number(row["samples_per_s"]["a"]),
            words.number(row["samples_per_s"]["b"]),
            f"{ratio['value']:.3f} {spread}".rstrip() + order,
            f"{row['trials']['a']}, {row['trials']['b']}",
        )
    return table
