"""What every stage of a worker shares: the request, loader and trainer of its rank, the result."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import os
import socket
from pathlib import Path
from typing import Any, Dict, List, Optional

from iobench import bridge, lifetime, registry, timing
from iobench.fingerprint import collect
from iobench.model import IoCounters, RankResult, Startup, Task
from iobench.order import multiset_sum
from iobench.protocols import Loader, LoadRequest

#: Stages whose steps are the case's trainer's.
TRAINED = ("train", "compute", "alone")


class Job:
    """The pieces that every stage's function shares, and the result they end in."""

    def __init__(
        self,
        task: Task,
        rank: int,
        world_size: int,
        request: LoadRequest,
        digests: List[str],
        born: float,
        imported: float,
        far: Optional[bridge.Bridge],
    ) -> None:
        self.task, self.rank, self.world_size, self.request = task, rank, world_size, request
        self.digests = digests
        self._born, self._imported = born, imported
        self.open_s = 0.0
        self.walk_s = 0.0
        self._far = far

    def loader(self, **changes: Any) -> Loader:
        """Open the case's loader on the request, in the Python that it needs."""
        case = self.task.trial.case
        request = dataclasses.replace(self.request, **changes)
        python = bridge.python_of(case)
        if python:
            self._far = self._far or bridge.Bridge(python, case)
            return self._far.loader(request)
        make = registry.load("loaders", case.loader).make
        loader: Loader = make(request, **case.loader_options)
        return loader

    def close(self) -> None:
        """End the other Python, if there is one."""
        if self._far is not None:
            self._far.close()

    def trainer(self) -> Any:
        """Make the case's trainer, or the null one where nobody trains.

        Where one batch is replayed it learns nothing: learned by heart, a batch has gradients near
        0, and with denormal numbers a CPU computes ten times slower than in training.
        """
        import numpy as np

        case = self.task.trial.case
        if self.task.trial.stage in TRAINED:
            make = registry.load("trainers", case.trainer).make
            given = {"batch": case.batch, "rank": self.rank, "world_size": self.world_size}
            given["sharers"] = case.world_size  # one rank alone keeps its share of the cores
            given["labels"] = 1 + int(np.asarray(self.request.labels).max(initial=-1))
            takes = inspect.signature(make).parameters
            given = {name: value for name, value in given.items() if name in takes}
            options = dict(case.trainer_options)
            if self.task.trial.stage != "train" and "learning_rate" in takes:
                options["learning_rate"] = 0.0
            return make(**given, **options)
        return registry.load("trainers", "null").make(batch=case.batch)

    def meet(self) -> None:
        """Wait until every rank is about to begin its loop."""
        if self.world_size > 1:
            lifetime.meet(Path(self.task.handshake), self.rank, self.world_size)

    def agree(self, value: int) -> int:
        """Return rank 0's value on every rank."""
        return lifetime.agree(Path(self.task.handshake), self.rank, value)

    def result(
        self,
        measured: timing.Measured,
        io: IoCounters,
        extra: Optional[Dict[str, Any]] = None,
    ) -> RankResult:
        """Assemble the rank's result from what a stage measured."""
        import numpy as np

        steps = measured.steps
        ids = np.concatenate(measured.ids) if measured.ids else np.zeros(0, np.int64)
        return RankResult(
            rank=self.rank,
            world_size=self.world_size,
            host=socket.gethostname(),
            pid=os.getpid(),
            steps=steps,
            startup=Startup(
                imports_s=self._imported - self._born,
                open_s=self.open_s,
                walk_s=self.walk_s,
                first_batch_s=steps.ready_s[0] if steps.ready_s else 0.0,
                process_s=lifetime.process_age_s() - (timing.clock() - self._imported),
            ),
            io=io,
            ids_digest=ids_digest(np.sort(ids)),
            order_digest=ids_digest(ids),
            ids_sum=multiset_sum(ids),
            began_s=measured.began_s,
            bytes_needed=int(self.request.sizes[ids].sum()) if len(ids) else 0,
            fingerprint={
                **collect(self.request.root),
                **({"loader": self._far.facts()} if self._far else {}),
            },
            **(extra or {}),
        )


def ids_digest(ids: Any) -> str:
    """Return the digest of sample ids in their order."""
    return hashlib.blake2b(ids.astype("<i8").tobytes(), digest_size=16).hexdigest()
