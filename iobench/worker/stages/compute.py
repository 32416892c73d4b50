"""Replays one batch: the trainer on one resident batch: G, the ingestion rate."""

from iobench.core.stages import Stage
from iobench.worker.stages._replay import replay

BACKEND = Stage(
    replay,
    "the trainer on one resident batch: G, the ingestion rate",
    caches=("-",),
    always=True,
    reads=False,
    trained=True,
    rung=50,
    beside="alone",
)
