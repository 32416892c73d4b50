"""What every stage of a worker shares: the request, loader and trainer of its rank, the result."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import os
from pathlib import Path
from typing import Any, Dict, List, Optional

from iobench.core import clock, registry, stages
from iobench.core.cases import Task
from iobench.core.order import multiset_sum
from iobench.core.peers import Peers
from iobench.core.protocols import Loader, LoadRequest
from iobench.core.records import IoCounters, RankResult, Startup
from iobench.host.fingerprint import collect
from iobench.worker import remote_loader
from iobench.worker.rendezvous import Driver


@dataclasses.dataclass
class RankRun:
    """The pieces that every stage's function shares, and the result they end in."""

    task: Task
    driver: Driver
    request: LoadRequest
    digests: List[str]  # of every sample of the dataset
    born: float  # the clock as the process began
    imported: float  # and with all libraries imported
    far: Optional[remote_loader.RemoteLoader]  # in the other Python that the loader needs, if any
    open_s: float = 0.0  # this and the next: for the record's ``Startup``
    walk_s: float = 0.0

    @property
    def stage(self) -> stages.Stage:
        """The stage that runs."""
        return stages.of(self.task.trial.stage)

    def loader(self, **changes: Any) -> Loader:
        """Open the case's loader on the request, in the Python that it needs."""
        case = self.task.trial.case
        request = dataclasses.replace(self.request, **changes)
        python = remote_loader.python_of(case)
        if python:
            self.far = self.far or remote_loader.RemoteLoader(python, case)
            return self.far.open(request)
        make = registry.load("loaders", case.loader).make
        loader: Loader = make(request, **case.loader_options)
        return loader

    def close(self) -> None:
        """End the other Python, if there is one."""
        if self.far is not None:
            self.far.end()

    def trainer(self) -> Any:
        """Make the case's trainer, or the null one where nobody trains.

        Where one batch is replayed it learns nothing: learned by heart, a batch has gradients near
        0, and with denormal numbers a CPU computes ten times slower than in training.
        """
        import numpy as np

        case = self.task.trial.case
        if self.stage.trained:
            make = registry.load("trainers", case.trainer).make
            takes = inspect.signature(make).parameters
            given = {
                "batch": case.batch,
                "rank": self.driver.rank,
                "world_size": self.driver.world_size,
                "peers": Peers(
                    self.driver.rank,
                    self.driver.world_size,
                    self.driver.address,
                    self.driver.agree,
                ),
                "sharers": case.ranks_per_node,  # one rank alone keeps its share of the cores
                "labels": 1 + int(np.asarray(self.request.labels).max(initial=-1)),
            }
            given = {name: value for name, value in given.items() if name in takes}
            options = dict(case.trainer_options)
            if not self.stage.reads and "learning_rate" in takes:
                options["learning_rate"] = 0.0
            return make(**given, **options)
        return registry.load("trainers", "null").make(batch=case.batch)

    def meet(self) -> float:
        """Wait until every rank is about to begin its loop; return when, by this node's clock."""
        return self.driver.meet() if self.driver.world_size > 1 or self.task.trial.slice_s else 0.0

    def rest(self) -> None:
        """Wait, at the end of the loop, for the arms that this one takes turns with."""
        if self.task.trial.slice_s:
            self.driver.meet()

    def result(
        self, measured: stages.Measured, io: IoCounters, extra: Optional[Dict[str, Any]] = None
    ) -> RankResult:
        """Assemble the rank's result from what a stage measured."""
        import numpy as np

        steps = measured.steps
        ids = np.concatenate(measured.ids) if measured.ids else np.zeros(0, np.int64)
        needed = int(self.request.sizes[ids].sum()) if len(ids) else 0
        case = self.task.trial.case
        libraries = registry.libraries(
            registry.stack_of(case), **registry.loading(case), trainers=case.trainer
        )
        return RankResult(
            rank=self.driver.rank,
            world_size=self.driver.world_size,
            host=self.driver.node,
            pid=os.getpid(),
            steps=steps,
            startup=Startup(
                imports_s=self.imported - self.born,
                open_s=self.open_s,
                walk_s=self.walk_s,
                first_batch_s=steps.ready_s[0] if steps.ready_s else 0.0,
                process_s=_process_age_s() - (clock.clock() - self.imported),
            ),
            io=io,
            ids_digest=ids_digest(np.sort(ids)),
            order_digest=ids_digest(ids),
            ids_sum=multiset_sum(ids),
            began_s=measured.began_s,
            fingerprint={
                **collect(self.request.root, *libraries),
                **({"loader": self.far.facts} if self.far else {}),
            },
            **{"bytes_needed": needed, **(extra or {})},
        )


def ids_digest(ids: Any) -> str:
    """Return the digest of sample ids in their order."""
    return hashlib.blake2b(ids.astype("<i8").tobytes(), digest_size=16).hexdigest()


def _process_age_s() -> float:
    """Return the seconds since this process was started (10 ms ticks)."""
    ticks = os.sysconf("SC_CLK_TCK")
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - started / ticks
