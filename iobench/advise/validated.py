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
    "workers": Checked(-0.04, 0.20),
    "cores": Checked(-0.04, 0.20),
    "nodes": Checked(-0.015, 0.015, "a mount of a fixed bandwidth"),
    "cached": Checked(0.24, 0.24, "one change"),
    "accelerator": Checked(0.11, 0.70, "most where a step takes less than 10 ms"),
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
