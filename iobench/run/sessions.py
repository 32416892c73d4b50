"""Where a suite runs, start by start: a resume goes on only on a host of the same kind."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import iobench
from iobench.analysis.confounders import differences
from iobench.core import registry
from iobench.core.cases import Dataset, Plan, Session
from iobench.core.clock import utc
from iobench.core.errors import DatasetError, ResultsError
from iobench.host import files, locks
from iobench.host.agent import LOCAL

#: Memory of nodes of one kind differs by what their firmware keeps.
MEMORY_SHARE = 0.02
#: At most so many differences are listed.
TOLD = 6


def entered(plan: Plan) -> Plan:
    """Return the plan with this start of the driver added to it.

    Raises ResultsError where the suite began on other hardware or software, with what differs.
    """
    here = _here(plan)
    if plan.sessions and (lines := unlike(plan.sessions[0].facts, here.facts)):
        more = f" and {len(lines) - TOLD} more" if lines[TOLD:] else ""
        first = plan.sessions[0]
        now = "it" if first.host == here.host else here.host
        raise ResultsError(
            f"this suite began on {first.host} at {first.began}, and {now} differs now "
            f"({'; '.join(lines[:TOLD])}{more}): resume it where these are equal, or run it anew "
            "here and see both with `iobench compare`"
        )
    return dataclasses.replace(plan, sessions=(*plan.sessions, here))


def _here(plan: Plan) -> Session:
    began = utc()
    facts = LOCAL.facts(Path(plan.dataset.root).absolute(), _distributions(plan))
    return Session(LOCAL.name(), LOCAL.job(), began, {"iobench": iobench.__version__, **facts})


def _distributions(plan: Plan) -> set[str]:
    """Return what the cases load from this Python; images are compared by their digests."""
    found: set[str] = set()
    for case in plan.cases:
        members = {"formats": case.format, "loaders": case.loader, "trainers": case.trainer}
        for libraries in registry.libraries(registry.stack_of(case), **members):
            found |= {*libraries.values()}
    return found


def unlike(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return what differs between the facts of two hosts, one line each; [] for one kind."""
    memory = [int(side.get("memory_bytes", 0)) for side in (a, b)]
    alike = max(memory) - min(memory) <= MEMORY_SHARE * max(memory)
    left_out = ("memory_bytes",) if alike else ()
    return differences(a, b, studied=left_out)


@contextlib.contextmanager
def measuring(dataset: Dataset) -> Iterator[list[str]]:
    """Hold the dataset while a suite runs; yield what a reader should know of others there.

    Raises DatasetError where another driver measures it on this node, or one anywhere writes it.
    """
    root = Path(dataset.root)
    if not root.is_dir():
        raise DatasetError(f"{root} is not there: bring the dataset back, or run the suite anew")
    busy = "{} is held by {}: wait for it, or measure another copy (--out)"
    folders = [root, *([Path(dataset.jpeg_root)] if dataset.in_place else [])]
    with (
        LOCAL.alone_with(folders),
        locks.held(root, lambda who: DatasetError(busy.format(root, who)), alone=False) as others,
    ):
        yield [
            f"the same data are measured by {other}: the caches of their storage are shared"
            for other in others
        ]


def notices(dataset: Dataset, results: Path) -> list[str]:
    """Return what is to know of locks on the filesystems of the data and of the results."""
    folders = (Path(dataset.root), files.nearest(results.absolute()))
    return list(dict.fromkeys(filter(None, map(locks.notice, folders))))
