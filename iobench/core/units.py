"""Durations and sizes as people write them."""

from __future__ import annotations

import re

from iobench.core.errors import SpecError


def seconds(text: str) -> float:
    """Return a duration such as ``90s``, ``15m``, ``4h`` or ``900`` in seconds.

    Raises SpecError for anything else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", str(text))
    if not match or float(match[1]) <= 0:
        raise SpecError(f"budget {text!r} is no duration; write 90s, 15m or 4h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def nbytes(text: str) -> int:
    """Return a size such as ``512M``, ``4G`` or ``1.5G`` (powers of 1024) in bytes.

    Raises SpecError for anything else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", str(text))
    size = float(match[1]) * 1024 ** " KMGT".index(match[2] or " ") if match else 0.0
    if not 1 <= size < 2**63:
        raise SpecError(f"memory {text!r} is no size; write 512M or 4G")
    return round(size)
