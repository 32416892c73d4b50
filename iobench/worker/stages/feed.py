"""One epoch: training on samples that are read and not decoded: AU as MLPerf Storage counts it."""

from iobench.core.stages import Stage
from iobench.worker.stages._loop import epoch

BACKEND = Stage(
    epoch,
    "training on samples that are read, not decoded: AU as MLPerf Storage counts it",
    rung=58,
    asks="read",
    trained=True,
    contrasted=True,
    named=True,
    rate=420.0,
)
