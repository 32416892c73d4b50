"""``load`` with its system calls traced, untimed."""

from __future__ import annotations

import os

from iobench.core.inside import CALLS_BEGIN, CALLS_END
from iobench.core.records import NO_STEPS, IoCounters
from iobench.core.stages import Measured, Outcome, Stage
from iobench.worker.rank import RankRun

#: Samples of a traced loop, in whole batches: stopping twice at every call is slow.
CALLS_SAMPLES = 256


def _marked(job: RankRun) -> Outcome:
    """Run the loop of ``load`` on some whole batches, between marks for the driver's tracer."""
    import numpy as np

    batch = job.request.batch
    samples = max(batch, min(CALLS_SAMPLES, len(job.request.ids)) // batch * batch)
    loader = job.loader(ids=job.request.ids[:samples])
    os.access(CALLS_BEGIN, os.F_OK)
    ids = [np.asarray(batch.ids) for batch in loader.batches()]
    os.access(CALLS_END, os.F_OK)
    loader.close()
    return Measured(NO_STEPS, ids), IoCounters(), {"notes": {"samples": sum(map(len, ids))}}


BACKEND = Stage(
    _marked,
    "load with its system calls counted, untimed",
    caches=("-",),
    always=True,
    timed=False,
    traced=True,
)
