"""The untimed twin: proves that every form holds the same samples."""

from __future__ import annotations

from iobench.core.dataset import samples_digest
from iobench.core.records import NO_STEPS, IoCounters
from iobench.core.stages import Measured, Outcome, Stage
from iobench.worker.rank import RankRun


def _hashed(job: RankRun) -> Outcome:
    """Hash every sample's stored bytes and compare them with the index."""
    import numpy as np

    loader = job.loader(digest=True)
    batches = [batch._replace(data=None) for batch in loader.batches()]
    loader.close()
    ids = [np.asarray(batch.ids) for batch in batches]
    every = np.concatenate(ids).tolist()
    labels = np.concatenate([np.asarray(batch.labels) for batch in batches]).tolist()
    digests = [digest for batch in batches for digest in batch.digests or ()]
    value = samples_digest(every, labels, digests)
    wrong = 0
    if job.task.trial.case.content == "jpeg":
        wrong = sum(job.digests[i] != d for i, d in zip(every, digests))
    notes = {"wrong_digests": wrong}
    return Measured(NO_STEPS, ids), IoCounters(), {"samples_digest": value, "notes": notes}


BACKEND = Stage(
    _hashed,
    "every sample's stored bytes hashed, untimed",
    asks="read",
    caches=("-",),
    always=True,
    timed=False,
    one_rank=True,
)
