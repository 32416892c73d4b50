"""The untimed twin: proves that every form holds the same samples."""

from __future__ import annotations

from typing import Any, List

from iobench.core.dataset import samples_digest
from iobench.core.protocols import Measured
from iobench.core.records import NO_STEPS, IoCounters
from iobench.core.stages import Outcome, Stage
from iobench.worker.rank import RankRun


def _hashed(job: RankRun) -> Outcome:
    """Hash every sample's stored bytes and compare them with the index."""
    import numpy as np

    loader = job.loader(digest=True)
    ids: List[Any] = []
    labels: List[Any] = []
    digests: List[str] = []
    for batch in loader.batches():
        ids.append(np.asarray(batch.ids))
        labels.append(np.asarray(batch.labels))
        digests.extend(batch.digests or ())
    loader.close()
    measured = Measured(NO_STEPS, ids)
    every = np.concatenate(ids).tolist()
    value = samples_digest(every, np.concatenate(labels).tolist(), digests)
    wrong = 0
    if job.task.trial.case.content == "jpeg":
        wrong = sum(job.digests[i] != d for i, d in zip(every, digests))
    return measured, IoCounters(), {"samples_digest": value, "notes": {"wrong_digests": wrong}}


BACKEND = Stage(
    _hashed,
    "every sample's stored bytes hashed, untimed",
    asks="read",
    caches=("-",),
    always=True,
    timed=False,
    one_rank=True,
)
