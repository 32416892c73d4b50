"""What a reader of every figure should know of how the trials ran, one sentence each."""

from __future__ import annotations

from collections import Counter

from iobench.analysis.beyond import Beyond
from iobench.analysis.evidence import Evidence, enters, usable
from iobench.analysis.hosts import host_of, timed
from iobench.analysis.ranks import by_kernel
from iobench.analysis.results import HostResult
from iobench.core.records import Record


def notes(found: Evidence) -> list[str]:
    """Return all of them, those of the plan first."""
    ran = [*_hosts(found), *_one_machine(found), *_rivals(found), *_late(found), *_unheld(found)]
    beyond = Beyond(found).notes([*found.last.values()])
    return [*found.plan.notes, *ran, *beyond]


def hosts(found: Evidence) -> list[HostResult]:
    """Return the hosts that the usable records are of, in the order of their first trials."""
    records = sorted(usable(found.last.values()), key=lambda r: r.started)
    return [
        HostResult(
            host=host,
            jobs=list(dict.fromkeys(r.job for r in records if host_of(r) == host and r.job)),
            trials=sum(host_of(r) == host for r in records),
            figures=host == found.home,
        )
        for host in dict.fromkeys(filter(None, map(host_of, records)))
    ]


def _hosts(found: Evidence) -> list[str]:
    """Return a note where the records are of several hosts."""
    several = hosts(found)
    if len(several) < 2:
        return []
    out = [r for r in usable(found.last.values()) if not found.at_home(r)]
    ladder = sum(not r.trial.contrast and timed(r.trial) for r in out)
    return [
        f"trials ran on {len(several)} hosts: {', '.join(map(_words, several))}; every block ran "
        f"on one of them, and the rates, stalls and limits are {found.home}'s alone: "
        f"{len(out)} trials of others are not in them, {ladder} of the ladder's"
    ]


def _words(host: HostResult) -> str:
    jobs = f", job {' and '.join(host.jobs)}" if host.jobs else ""
    return f"{host.host} ({host.trials} trials{jobs})"


def _one_machine(found: Evidence) -> list[str]:
    """Return a note where nodes of a trial are one machine, such as containers of it.

    On one node a rank's name may be its container's.
    """
    for record in (r for r in found.last.values() if r.trial.case.nodes > 1):
        for ranks in by_kernel(record.ranks):
            if len(names := {rank.host for rank in ranks}) > 1:
                return [
                    f"nodes {', '.join(sorted(names))} are one machine (equal boot ids): they "
                    "share its cores and its page cache, so what one has read is not cold for the "
                    "other unless each has a filesystem of its own"
                ]
    return []


def _rivals(found: Evidence) -> list[str]:
    """Return a note where other drivers ran on the node meanwhile."""
    beside = [r for r in usable(found.last.values()) if r.notes.get("rivals")]
    if not beside:
        return []
    who = list(dict.fromkeys(str(rival) for r in beside for rival in r.notes["rivals"]))
    more = f" and {len(who) - 1} others" if who[1:] else ""
    return [f"{len(beside)} trials ran beside another iobench on their node: {who[0]}{more}"]


def _late(found: Evidence) -> list[str]:
    """Return a note if ranks did not begin together, with the words of the worst trial."""
    late = [r for r in found.last.values() if enters(r) and r.notes.get("late")]
    if not late:
        return []
    worst = max(late, key=_skew_s)
    return [f"{worst.notes['late']} ({worst.trial.id}; {len(late)} trials)"]


def _skew_s(record: Record) -> float:
    return float(record.notes["skew_s"])


def _unheld(found: Evidence) -> list[str]:
    """Return a note for each reason why the pages of warm trials were not locked."""
    reasons = Counter(
        r.cache.unheld for r in found.last.values() if r.trial.cache == "warm" and r.cache.unheld
    )
    return [
        f"{count} warm trials ran on pages that were not locked: {reason}"
        for reason, count in reasons.most_common()
    ]
