"""One epoch: the real run: what the user sees."""

from iobench.core.stages import Stage
from iobench.worker.stages._loop import epoch

BACKEND = Stage(
    epoch, "the real run: what the user sees", rung=60, trained=True, contrasted=True, rate=420.0
)
