"""Numbers and intervals as text, the same in the terminal and in HTML."""

from __future__ import annotations

import math
from collections.abc import Callable

from iobench.equations.stats import Interval

NONE = "n/a"


def number(x: float | None, digits: int = 3) -> str:
    """Return a figure with ``digits`` significant ones and thousands separated."""
    if x is None:
        return NONE
    if x == 0 or not math.isfinite(x):
        return "0" if x == 0 else "unbounded"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(x))))
    return f"{x:,.{min(decimals, 6)}f}"


def percent(x: float | None) -> str:
    """Return a fraction as a percentage with two or three significant digits."""
    if x is None:
        return NONE
    return f"{100 * x:.0f} %" if abs(x) >= 0.1 else f"{100 * x:.1f} %"


def milliseconds(seconds: float | None) -> str:
    """Return seconds as ms, to the microsecond where small."""
    if seconds is None:
        return NONE
    ms = 1e3 * seconds
    if abs(ms) < 5e-4:
        return "0"
    return f"{ms:.3f}" if abs(ms) < 1 else f"{ms:.2f}"


def limits(entry: Interval | None, form: Callable[[float], str] = number) -> str:
    """Return the limits as ``low to high``, "" if there are none."""
    return f"{form(entry.low)} to {form(entry.high)}" if entry and entry.limited else ""


def value(entry: Interval | None) -> str:
    """Return the point of an estimate, or n/a."""
    return number(entry.value) if entry else NONE


def bracketed(entry: Interval | None, decimals: int = 3) -> str:
    """Return the limits as ``[0.996, 1.012]``, "" if there are none."""
    if not entry or not entry.limited:
        return ""
    return f"[{entry.low:.{decimals}f}, {entry.high:.{decimals}f}]"
