"""What every command writes with: two consoles, one complaint, one JSON form."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from iobench.core.errors import one_line
from iobench.report.screen import Screen

PATH = click.Path(path_type=Path)
JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable output on stdout.")


class _Console(Screen):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit with 1, which says that a trial failed


#: Columns of what is written to a file or a pipe.
_WIDE = 120

out = _Console(width=None if sys.stdout.isatty() else _WIDE)
err = _Console(stderr=True)


def complain(message: str) -> int:
    """Write one line to stderr; return the exit status of a user's mistake."""
    sys.stderr.write(f"iobench: {one_line(message)}\n")
    return 2


def print_json(value: Any) -> None:
    """Write ``value`` to stdout as JSON."""
    click.echo(json.dumps(value, indent=2))
