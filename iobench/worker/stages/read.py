"""One epoch: the loader's reads alone: F, the fetch rate."""

from iobench.core.stages import Stage
from iobench.worker.stages._loop import epoch

BACKEND = Stage(
    epoch,
    "the loader's reads alone: F, the fetch rate",
    rung=20,
    asks="read",
    contrasted=True,
    rate=4000.0,
)
