"""Stages: what a trial runs and measures.  One file a stage in ``iobench/worker/stages``.

All that the planner, the driver, the worker and the analysis must know of a stage stands in the
file's ``BACKEND = Stage(...)``.
"""

from __future__ import annotations

import dataclasses
import os
from functools import cache
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from iobench.core import registry
from iobench.core.records import IoCounters, Steps

#: The stage whose accelerators' utilisation counts as MLPerf Storage's.
FEED = "feed"
#: The stage that times the parts of a sample one by one, of contrasts that found a difference.
PROBE = "probe"
#: Samples of a serial probe; and of one that takes turns with another arm's.
PROBED, PROBED_IN_TURNS = 256, 1024


class Measured(NamedTuple):
    """What the loop saw."""

    steps: Steps
    ids: List[Any]  # the id array of every batch, not copied
    began_s: float = 0.0  # the clock when it began
    marks: Sequence[Any] = ()  # of every batch, where the loader has them


#: What the loop saw, the I/O meanwhile, and further fields of the rank's result.
Outcome = Tuple[Measured, IoCounters, Dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage.

    A ``trained`` one takes its steps from the case's trainer (else nobody trains).  One that does
    not read the dataset replays a batch for ``compute_s``; cases with the same computation share
    it.  ``on_host``: on the driver's node, without the case's runtime.  ``by_fio``: the worker only
    locates the samples there, and fio reads them, ``on_nodes`` on all that the case is on.  An
    ``of_mount`` one measures the mount and not the case, and gives no rate of samples: cases on
    the same files share it.  ``writes``: in a folder of its own beside the data
    (``Task.scratch``).  ``starts``: it measures how its processes start; the cache state is that of
    the software they start from, set before the start, and the data's is as it is.  ``needs``: a
    method of the trainer without which it cannot run.  ``onto_device``: only where batches made on
    the host go to a GPU.  A ``named`` one runs only where a spec names it.
    """

    run: Callable[[Any], Outcome]  # measures one rank (iobench.worker.rank.RankRun)
    summary: str
    rung: Optional[int] = None  # place on the ladder, ascending; None: a side stage, of iobench's
    asks: str = "load"  # of the loader: read, decode, load; "": there is no loader
    caches: Optional[Tuple[str, ...]] = None  # states that make sense (None: any); "-": none at all
    always: bool = False  # run in all of ``caches``, whatever states the spec asks for
    reads: bool = True
    once: bool = True  # no byte of the data twice, where it reads them cold
    trained: bool = False
    timed: bool = True  # its times enter figures
    one_rank: bool = False  # one process answers for all ranks of a case
    contrasted: bool = False  # an epoch of batches, one reading a step: it can be paired
    on_host: bool = False
    by_fio: bool = False
    on_nodes: bool = False  # its fio reads on every node of the case at once
    of_mount: bool = False
    writes: bool = False
    starts: bool = False
    per_file: bool = False  # only of formats that store one file a sample
    needs: str = ""
    onto_device: bool = False
    named: bool = False
    traced: bool = False  # the driver counts the system calls between the loop's marks
    in_process: bool = False  # reads in the worker's own Python, wherever the loader runs
    beside: str = ""  # stage that runs in the same round, where a case has several ranks
    rate: float = 0.0  # first guess, samples/s a worker (one core, 110 KB JPEGs); 0: ``loop_s``
    loop_s: float = 1.0  # first guess without a rate


def of(name: str) -> Stage:
    """Return the stage of this name; raises as :func:`registry.load` does."""
    return _stage(name, os.environ.get("IOBENCH_PLUGINS", ""))


def table() -> Mapping[str, Stage]:
    """Return name -> stage: the ladder's in their order, then the side stages."""
    return _table(os.environ.get("IOBENCH_PLUGINS", ""))


def rungs() -> Tuple[str, ...]:
    """Return the names of the ladder's stages, in their order."""
    return tuple(name for name, stage in table().items() if stage.rung is not None)


def usual() -> Tuple[str, ...]:
    """Return the rungs of a ladder whose spec names none, in their order."""
    return tuple(name for name in rungs() if not of(name).named)


def contrasted() -> Tuple[str, ...]:
    """Return the names of the stages whose trials can be paired, in the ladder's order."""
    return tuple(name for name, stage in table().items() if stage.contrasted)


@cache
def _stage(name: str, plugins: str) -> Stage:
    found: Stage = registry.load("stages", name)
    return found


@cache
def _table(plugins: str) -> Mapping[str, Stage]:
    found = [(name, _stage(name, plugins)) for name in registry.names("stages")]
    return dict(sorted(found, key=lambda item: (item[1].rung is None, item[1].rung or 0)))
