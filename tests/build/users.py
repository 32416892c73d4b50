"""Another user than root."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator

NOBODY = 65534


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read and write everything."""
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)
    else:
        yield
