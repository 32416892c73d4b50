"""How far what-ifs of each kind were from fresh runs: the figures of docs/validation.md, once.

A kind that was never checked has no row.
"""

from __future__ import annotations

from typing import NamedTuple


class Checked(NamedTuple):
    """Least and most error of a kind of what-if: predicted / measured - 1."""

    least: float
    most: float
    about: str = ""


#: What-if -> its errors, by `make bench-predict` (docs/validation.md, Advice).
CHECKED = {
    "workers": Checked(-0.012, 0.114),
    "cores": Checked(0.515, 0.515, "one change, to steps of 4 ms"),
    "nodes": Checked(0.0, 0.067, "a mount of a fixed bandwidth"),
    "cached": Checked(-0.001, 0.089),
    "accelerator": Checked(-0.036, 0.074),
    "pipeline": Checked(-0.174, 0.027),
}


def error_of(name: str) -> str:
    """Return how far what-ifs of this kind were off where they were checked, "" where none was."""
    found = CHECKED.get(name)
    if found is None:
        return ""
    limits = f"{100 * found.least:+.3g}"
    if found.most != found.least:
        limits = f"{limits} to {100 * found.most:+.3g}"
    return f"{limits} % where it was checked{f' ({found.about})' if found.about else ''}"
