"""Pages that were just read, on kernels that reclaim idle ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable, Tuple, TypeVar

from iobench.host import page_cache, page_lock
from iobench.host.page_cache import Residency

T = TypeVar("T")


@contextlib.contextmanager
def warm(files: Sequence[Path]) -> Iterator[None]:
    """Read ``files`` and keep their pages meanwhile, locked where this user may lock them."""
    page_cache.warm(files)
    with page_lock.lock(files):
        yield


def read_whole(
    read: Callable[[], T], residency: Callable[[], Residency], attempts: int = 5
) -> Tuple[T, Residency]:
    """Call ``read`` until all pages are resident after it, at most ``attempts`` times.

    Returns the last result of ``read`` and the residency after it.  A kernel that reclaims idle
    pages takes a few now and then; what is not read stays missing in every attempt.
    """
    for _ in range(attempts):
        result = read()
        found = residency()
        if found.fraction == 1.0:
            break
    return result, found
