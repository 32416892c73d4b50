"""Durations and sizes as people write them."""

from __future__ import annotations

import re

from iobench.core.errors import SpecError, shown

#: A year: no budget is longer.
LONGEST_S = 365 * 24 * 3600


def seconds(text: str, key: str = "budget") -> float:
    """Return a duration such as ``90s``, ``15m``, ``4h`` or ``900`` in seconds.

    Raises SpecError, which names ``key``, for anything else.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([smh]?)\s*", str(text))
    found = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if not 0 < found <= LONGEST_S:
        raise SpecError(
            f"{key} = {shown(text)} is no duration; allowed: 90s, 15m or 4h, at most {LONGEST_S}s"
        )
    return found


def nbytes(text: str, key: str = "memory") -> int:
    """Return a size such as ``512M``, ``4G`` or ``1.5G`` (powers of 1024) in bytes.

    Raises SpecError, which names ``key``, for anything else.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?\s*", str(text))
    size = float(match[1]) * 1024 ** " KMGT".index(match[2] or " ") if match else 0.0
    if not 1 <= size < 2**63:
        raise SpecError(f"{key} = {shown(text)} is no size; allowed: a size such as 512M or 4G")
    return round(size)
