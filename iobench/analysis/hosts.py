"""Which host's figures a suite gives: hosts of one kind still differ, so they are never pooled.

A suite that is resumed on another host of the same kind has records of both.  A block ran on one of
them, so its ratio counts whichever it was.  Rates, stalls and limits are those of one host.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable

from iobench.core import stages
from iobench.core.cases import Trial
from iobench.core.errors import SpecError
from iobench.core.records import Record


def host_of(record: Record) -> str:
    """Return the host that a record is of; "" where it does not say."""
    bare = record.trial.case.runtime == "bare" and record.ranks  # others may have names inside
    return record.host or (record.ranks[0].host if bare else "")


def timed(trial: Trial) -> bool:
    """Return whether a trial's times enter figures, so that they are of one host."""
    with contextlib.suppress(SpecError):  # results of a plug-in that is not here
        return stages.of(trial.stage).timed
    return True


def on_ladder(trial: Trial) -> bool:
    """Return whether a trial is a timed one of no block."""
    return not trial.contrast and timed(trial)


def home(records: Iterable[Record]) -> str:
    """Return the host with the most of the ladder's records, of equals the later; "" for none."""
    rungs: Counter[str] = Counter()
    latest: dict[str, str] = {}
    for record in records:
        if host := host_of(record):
            rungs[host] += on_ladder(record.trial)
            latest[host] = max(latest.get(host, ""), record.started)
    return max(rungs, key=lambda host: (rungs[host], latest[host]), default="")


def is_of(record: Record, host: str) -> bool:
    """Return whether a record may be of this host."""
    return host_of(record) in ("", host)


def nodes_of(record: Record) -> tuple[str, ...]:
    """Return the nodes that a record is of, sorted; () where it does not say."""
    return tuple(sorted({n.node for n in record.nodes} or {*filter(None, [host_of(record)])}))


def together(a: Record, b: Record) -> bool:
    """Return whether two records may be of one driver's host and of one allocation.

    Of its nodes one may have used fewer than the other.
    """
    nodes, others = ({n.node for n in record.nodes} for record in (a, b))
    return (
        ("" in (host_of(a), host_of(b)) or host_of(a) == host_of(b))
        and ("" in (a.job, b.job) or a.job == b.job)
        and (nodes <= others or others <= nodes)
    )
