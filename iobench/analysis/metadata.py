"""What many files cost on a mount: docs/method.md, "Many files"."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from iobench.analysis.evidence import Evidence
from iobench.analysis.storage_results import FileTimes, MetadataRates, MetadataResult
from iobench.core.cases import Case
from iobench.core.records import Record
from iobench.equations import stats, storage

#: A file's own cost binds where its open and close take over this share of its time.
HALF = 0.5
PARTS = ("open_s", "read_s", "close_s")


def metadata_of(found: Evidence, case: Case) -> MetadataResult | None:
    """Return what files cost on a case's mount; None without ``metadata`` and ``files``."""
    noted = _noted(found.shared(case, "metadata"), "metadata")
    rates = _rates(point for note in noted for point in note["points"])
    whole = _whole_files(_noted(found.shared(case, "files"), "files"))
    if not rates and not whole:
        return None
    return MetadataResult(
        rates=rates,
        dropped=bool(noted) and all(note["dropped"] for note in noted),
        left_out=next((note["left_out"] for note in noted if note["left_out"]), ""),
        whole_files=whole,
        words=_words(whole),
    )


def opens(found: MetadataResult | None) -> storage.Opens | None:
    """Return what opening files gives at most, whatever the directory's size; None: not known."""
    best: dict[int, float] = {}
    for rate in found.rates if found else ():
        best[rate.processes] = max(best.get(rate.processes, 0.0), rate.per_s["open"].value)
    return storage.opens(best)


def _noted(records: Sequence[Record], name: str) -> list[Any]:
    return [rank.notes[name] for r in records for rank in r.ranks if name in rank.notes]


def _rates(points: Iterable[dict[str, Any]]) -> list[MetadataRates]:
    """Return one entry for each number of files and processes; a trial is one repeat."""
    found: defaultdict[tuple[int, int], defaultdict[str, list[float]]]
    found = defaultdict(lambda: defaultdict(list))
    for p in points:
        if p["count"]:
            rate = p["count"] / p["seconds"]
            found[p["files"], p["processes"]][p["operation"]].append(rate)
    return [
        MetadataRates(*key, {name: stats.geometric_interval(v) for name, v in each.items()})
        for key, each in sorted(found.items())
    ]


def _whole_files(trials: Sequence[Sequence[dict[str, Any]]]) -> list[FileTimes]:
    by_processes: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for point in (p for points in trials for p in points if p["files"] and p["seconds"]):
        by_processes[point["processes"]].append(point)
    return [
        FileTimes(
            processes=processes,
            files_per_s=stats.geometric_interval([p["files"] / p["seconds"] for p in points]),
            bytes_per_s=sum(p["bytes"] for p in points) / sum(p["seconds"] for p in points),
            **{
                part: stats.geometric_interval([p[part] / p["files"] for p in points])
                for part in PARTS
            },
        )
        for processes, points in sorted(by_processes.items())
    ]


def _words(whole: Sequence[FileTimes]) -> str:
    """Return what a file's time is spent on, by the fastest number of processes."""
    if not whole:
        return ""
    best = max(whole, key=lambda w: w.files_per_s.value)
    parts = ", ".join(
        f"{part.removesuffix('_s')} {1e3 * getattr(best, part).value:.2f} ms" for part in PARTS
    )
    who = "one process" if best.processes == 1 else f"{best.processes} processes"
    binds = "files bind, not bytes" if best.share > HALF else "its bytes bind, not the files"
    return f"a whole file, cold, by {who}: {parts}: {binds}"
