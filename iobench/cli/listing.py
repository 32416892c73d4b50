"""``iobench list`` and ``iobench doctor``: what there is to choose from, and can be measured."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from iobench.advise import machine
from iobench.cli.console import JSON, PATH, out, print_json
from iobench.core import registry, stages
from iobench.spec import load


@click.command("list")
@JSON
def list_(as_json: bool) -> None:
    """List the members of every axis, the pipelines, stages and shipped specs."""
    found = tables()
    if as_json:
        print_json(found)
        return
    for title, rows in found.items():
        table = Table(title=title, title_justify="left", box=None, show_header=False)
        for name, summary in rows.items():
            table.add_row(name, summary)
        out.print(table)


def tables() -> dict[str, dict[str, str]]:
    """Return title -> name -> what it is: axes, pipelines, stages and shipped specs."""
    found = {axis: members(axis) for axis in registry.AXES if axis != "stages"}
    found["pipelines"] = {}
    for loader in registry.names("loaders"):
        backend = registry.load("loaders", loader)
        why = _unavailable("loaders", loader)
        for form in registry.names("formats"):
            contents = registry.load("formats", form).contents
            for stored in [form] + [f"{form}-{c}" for c in sorted(contents - {"jpeg"})]:
                if backend.formats is None or stored in backend.formats:
                    path = "native" if stored in backend.native else "reader"
                    found["pipelines"][f"{loader}:{stored}"] = f"path: {path}{why}"
    for alias, full in registry.ALIASES.items():
        found["pipelines"][alias] = f"alias of {full}"
    found["stages"] = {name: stage.summary for name, stage in stages.table().items()}
    found["specs"] = load.shipped()
    return found


def members(axis: str) -> dict[str, str]:
    """Return name -> summary, with the reason appended where a member cannot run here."""
    known = registry.names(axis)
    return {name: registry.load(axis, name).summary + _unavailable(axis, name) for name in known}


def _unavailable(axis: str, name: str) -> str:
    """Return " (unavailable here: ...)" or ""; another stack's member asks not this Python."""
    stack = getattr(registry.load(axis, name), "stack", "")
    other = stack not in ("", registry.DEFAULT_STACK)
    why = registry.unavailable("stacks", stack) if other else registry.unavailable(axis, name)
    return f" (unavailable here: {why})" if why else ""


@click.command()
@click.argument("path", type=PATH, default=".")
@JSON
def doctor(path: Path, as_json: bool) -> None:
    """Check what can be measured on this machine for data under PATH, with reasons and remedies."""
    checks = machine.examine(path)
    if as_json:
        print_json([vars(c) for c in checks])
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for check in checks:
        mark = Text("ok", style="green") if check.ok else Text("no", style="yellow")
        table.add_row(mark, check.name, check.detail)
        if not check.ok and check.remedy:
            table.add_row("", "", Text(f"-> {check.remedy}", style="dim"))
    out.print(table)
