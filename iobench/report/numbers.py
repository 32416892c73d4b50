"""Numbers and intervals as text, the same in the terminal and in HTML."""

from __future__ import annotations

import math
from collections.abc import Callable

from iobench.equations.stats import Interval

NONE = "n/a"


def number(x: float | None, digits: int = 3) -> str:
    """Return a figure with ``digits`` significant ones and thousands separated."""
    if x is None or math.isnan(x):
        return NONE
    if x == 0 or not math.isfinite(x):
        return "0" if x == 0 else "unbounded"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(x))))
    return f"{x:,.{min(decimals, 6)}f}"


def percent(x: float | None) -> str:
    """Return a fraction as a percentage with two or three significant digits; never 0 but for 0."""
    if x is None or math.isnan(x):
        return NONE
    if math.isinf(x):
        return "unbounded"
    if 0 < abs(x) < 5e-4:
        return f"{number(100 * x, 1)} %"
    return f"{100 * x:.0f} %" if abs(x) >= 0.1 else f"{100 * x:.1f} %"


def duration(seconds: float) -> str:
    """Return ``45 s`` or ``12 min``."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def milliseconds(seconds: float | None) -> str:
    """Return seconds as ms, to the microsecond where small."""
    if seconds is None or not math.isfinite(seconds):
        return number(seconds)
    ms = 1e3 * seconds
    if abs(ms) < 5e-4:
        return "0"
    return f"{ms:.3f}" if abs(ms) < 1 else f"{ms:.2f}"


def ratio(x: float | None, digits: int = 3) -> str:
    """Return a ratio; one that is not 1 has enough digits to differ from 1, to a millionth."""
    while x is not None and digits < 9 and x != 1 and number(x, digits).rstrip("0") == "1.":
        digits += 1
    return number(x, digits)


def limits(entry: Interval | None, form: Callable[[float], str] = number) -> str:
    """Return the limits as ``low to high``, "" if there are none."""
    return f"{form(entry.low)} to {form(entry.high)}" if entry and entry.limited else ""


def value(entry: Interval | None) -> str:
    """Return the point of an estimate, or n/a."""
    return number(entry.value) if entry else NONE


def plain(value: object) -> str:
    """Return a recorded fact as people write it; n/a for one that is not known."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return NONE
    return str(value)


def bracketed(entry: Interval | None, form: Callable[[float], str] = "{:.2f}".format) -> str:
    """Return the limits as ``[0.38, 0.45]``, "" if there are none."""
    return f"[{form(entry.low)}, {form(entry.high)}]" if entry and entry.limited else ""


def ratio3(x: float) -> str:
    """Return a ratio with three decimals, or as many as it takes to differ from 1."""
    text = f"{x:.3f}"
    return ratio(x) if text == "1.000" and x != 1 else text
