"""One epoch: read and JPEG decode."""

from iobench.core.stages import Stage
from iobench.worker.stages._loop import epoch

BACKEND = Stage(
    epoch,
    "read and JPEG decode",
    rung=30,
    asks="decode",
    caches=("warm",),
    contrasted=True,
    rate=700.0,
)
