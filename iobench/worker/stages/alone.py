"""Replays one batch: compute on one rank of several: what they take longer is communication."""

from iobench.core.stages import Stage
from iobench.worker.stages._replay import replay

BACKEND = Stage(
    replay,
    "compute on one rank of several: what they take longer is communication",
    caches=("-",),
    always=True,
    reads=False,
    trained=True,
    one_rank=True,
)
