"""Batches of nothing: the ids are real, no byte is read.  Tests and measures iobench itself."""

from __future__ import annotations

import time
from typing import Any, Callable, Iterator, Literal, Mapping

import numpy as np

from iobench.core import transforms
from iobench.core.cases import Batch, Case
from iobench.core.errors import SpecError
from iobench.core.members import LoaderBackend
from iobench.core.options import Seconds
from iobench.core.protocols import LoadRequest


class NullLoader:
    """Yields the request's ids and labels at once, or after a stated delay a batch."""

    queue_batches = 0

    def __init__(
        self,
        request: LoadRequest,
        *,
        delay_s: Seconds = 0.0,  # slept before each batch
        data: Literal["none", "resident"] = "none",  # or resident: one zero array
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises SpecError for another ``data`` or a negative delay."""
        if data not in ("none", "resident"):
            raise SpecError(f"data {data!r} is not possible; allowed: none, resident")
        if delay_s < 0:
            raise SpecError(f"delay_s {delay_s} is not possible; allowed: 0 or more")
        self._request = request
        self._delay_s = delay_s
        self._sleep = sleep
        self._data: Any = None
        if data == "resident" and request.stage == "load":
            shape = transforms.transform(request.transform).shape
            self._data = np.zeros((request.batch, *shape), np.float32)

    def batches(self) -> Iterator[Batch]:
        """Yield ``len(ids) // batch`` batches; no byte counts as read."""
        request = self._request
        labels = np.asarray(request.labels, np.int64)
        digests = [""] * request.batch if request.digest else None
        for ids in request.batches():
            if self._delay_s:
                self._sleep(self._delay_s)
            yield Batch(self._data, labels[ids], ids, 0, digests)

    def close(self) -> None:
        """Do nothing."""


def _unused(case: Case) -> Mapping[str, str]:
    why = "loader null reads nothing"
    return dict.fromkeys(("workers", "prefetch"), why)


BACKEND = LoaderBackend(
    NullLoader,
    "batches of nothing, for testing iobench itself",
    formats=frozenset({"null"}),
    native=frozenset({"null"}),
    decoding_threads=lambda case: 0,
    unused=_unused,
)
