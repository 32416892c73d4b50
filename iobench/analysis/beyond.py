"""Caches past this host, which nobody here can look into: what is known of them.

docs/filesystems.md, "Beyond the client".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from iobench.analysis.evidence import Evidence, enters
from iobench.analysis.storage_results import RereadRates, ServersCacheResult
from iobench.core import stages
from iobench.core.cases import Case
from iobench.core.errors import SpecError
from iobench.core.records import UNKNOWN, Record
from iobench.equations import servers_cache, stats
from iobench.equations.servers_cache import Knee, Reread
from iobench.plan.ladder import place_key

LARGER, SMALLER = "larger than the servers' cache", "may come from the servers' memory"


class Beyond:
    """What is known of the caches of a suite's servers: how trials read, and the caches' size."""

    def __init__(self, found: Evidence) -> None:
        self._stated = found.plan.servers_cache_bytes
        swept: dict[tuple[Any, ...], list[Record]] = {}
        for record in found.last.values():
            if record.trial.stage == "reread" and enters(record):
                swept.setdefault(place_key(record.trial.case), []).append(record)
        self.knees = {place: servers_cache.bracket(_knees(each)) for place, each in swept.items()}

    def label(self, record: Record) -> str:
        """Return what is known of the servers' caches that a trial read from."""
        known = [record.cache.beyond]
        case = record.trial.case
        stated = self._stated if case.placement == Case.placement else 0
        size = servers_cache.size(stated, self.knees.get(place_key(case)))
        if size is not None and record.cache.bytes_needed and _reads_once(record):
            larger = record.cache.bytes_needed >= servers_cache.LARGER * size
            known.append(LARGER if larger else SMALLER)
        told = [words for words in known if words != UNKNOWN]
        # what nobody has read since it was written says more than that it might be there
        return ", ".join([w for w in told if w != SMALLER or len(told) == 1]) or UNKNOWN

    def notes(self, records: Sequence[Record]) -> list[str]:
        """Return how many cold trials something is known of, and what the stated size is not."""
        cold = [r for r in records if enters(r) and _read_cold(r)]
        counts = Counter(map(self.label, cold))
        out = []
        if set(counts) - {UNKNOWN}:
            parts = ", ".join(f"{count} {name}" for name, count in counts.most_common())
            out.append(f"servers' caches, of {len(cold)} cold trials: {parts}")
        held = max((knee.low for knee in self.knees.values() if knee), default=0)
        if self._stated and held > self._stated:
            out.append(
                f"servers_cache = {self._stated / 1e6:,.0f} MB is too small: {held / 1e6:,.0f} MB "
                "came from the servers' memory when they were read again"
            )
        return out


def servers_cache_of(found: Evidence, case: Case) -> ServersCacheResult | None:
    """Return what the servers keep of a case's files; None where it has no stage ``reread``."""
    records = found.of(case, "reread")
    sweeps = [_sets(record) for record in records]
    if not any(sweeps):
        return None
    by_size: dict[int, list[Reread]] = {}
    for one in (one for sets in sweeps for one in sets):
        by_size.setdefault(one.nbytes, []).append(one)
    knee = servers_cache.bracket(_knees(records))
    return ServersCacheResult(
        sets=[
            RereadRates(
                bytes=nbytes,
                first_per_s=stats.geometric_interval([one.first_per_s for one in each]),
                again_per_s=stats.geometric_interval([one.again_per_s for one in each]),
            )
            for nbytes, each in sorted(by_size.items())
        ],
        low=knee.low if knee else None,
        high=knee.high if knee else None,
        words=_words(knee, max(by_size)),
    )


def _knees(records: Sequence[Record]) -> list[Knee]:
    found = (servers_cache.knee(_sets(record)) for record in records)
    return [knee for knee in found if knee is not None]


def _sets(record: Record) -> list[Reread]:
    """Return the passes over each working set of a sweep."""
    sets = [s for rank in record.ranks for s in rank.notes.get("reread", {}).get("sets", ())]
    return [
        Reread(s["bytes"], s["bytes"] / s["first_s"], s["bytes"] / s["again_s"])
        for s in sets
        if s["first_s"] > 0 and s["again_s"] > 0
    ]


def _words(knee: Knee | None, largest: int) -> str:
    if knee is None:
        return (
            f"second passes are not clearly faster at any size up to {largest / 1e6:,.0f} MB: the "
            "servers keep nothing of it, held all of it before, or are as fast from their disks"
        )
    if knee.high is None:
        return (
            f"no knee up to {largest / 1e6:,.0f} MB: second passes come from the servers' memory, "
            f"which holds {knee.low / 1e6:,.0f} MB at least"
        )
    return (
        f"the servers' cache holds between {knee.low / 1e6:,.0f} and {knee.high / 1e6:,.0f} MB: "
        "second passes over more are no faster than the first"
    )


def _reads_once(record: Record) -> bool:
    """Return whether the bytes that a trial needed are different ones."""
    try:
        return _read_cold(record) and stages.of(record.trial.stage).once
    except SpecError:  # results of a plug-in that is not here
        return False


def _read_cold(record: Record) -> bool:
    """Return whether a trial read data cold, and not the software that it starts from."""
    return record.trial.cache == "cold" and "software" not in record.notes
