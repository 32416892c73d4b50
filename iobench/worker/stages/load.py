"""One epoch: the whole input pipeline, nobody trains: P."""

from iobench.core.stages import Stage
from iobench.worker.stages._loop import epoch

BACKEND = Stage(
    epoch, "the whole input pipeline, nobody trains: P", rung=40, contrasted=True, rate=420.0
)
