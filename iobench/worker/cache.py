"""Cache state of data that only a container sees as files: set and proven by its worker.

A filesystem image is a file on the host, which the driver evicts and proves; the pages of the files
in it belong to the mount inside the container and are gone with it.  So the worker evicts or reads
all of them, untimed, and counts what is resident, right before the clock starts and after it stops.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Sequence

from iobench.core.channel import Prepared
from iobench.host import page_cache

#: Key of a result's notes: what was resident after the loop.
AFTER = "resident_after"


def prepare(cache: str, files: Sequence[Path], node: str) -> Prepared:
    """Bring the files into the state ``cold`` or ``warm``; return the proof of this ``node``."""
    if cache == "warm":
        page_cache.check_warmable(sum(f.stat().st_size for f in files))
        page_cache.warm(files)
    else:
        page_cache.evict(files)
    return Prepared(node, **look(files))


def look(files: Sequence[Path]) -> Dict[str, Any]:
    """Return the share of the files' pages that is resident (None: unproven), and by which call."""
    found = page_cache.residency(files)
    return {"fraction": found.fraction, "method": found.method}
