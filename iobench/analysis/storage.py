"""One case's requests against what its mount gives: docs/method.md, "The mount's own limits"."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from iobench.analysis import metadata
from iobench.analysis.evidence import Evidence
from iobench.analysis.storage_results import StorageResult
from iobench.core.cases import Case
from iobench.core.records import Record
from iobench.equations import storage
from iobench.equations.storage import (
    BANDWIDTH,
    IOPS,
    LATENCY,
    METADATA,
    MountLimits,
    Pattern,
    Point,
)


def storage_of(found: Evidence, case: Case) -> StorageResult | None:
    """Return what binds a case's requests; None without the rungs ``requests`` and ``ceiling``.

    Of a case on several nodes it is not known: ``requests`` is of one.
    """
    if case.nodes > 1:
        return None
    opened = metadata.opens(metadata.metadata_of(found, case))
    mount = storage.mount(_points(found.shared(case, "requests")), opened)
    pattern = _pattern(found.shared(case, "ceiling")) if mount else None
    if mount is None or pattern is None:
        return None
    roofs = storage.roofs(mount, pattern)
    binding, deeper = storage.binding(roofs), storage.deeper(mount, pattern)
    return StorageResult(
        request_bytes=pattern.size,
        requests_per_sample=pattern.requests,
        readers=pattern.readers,
        bandwidth=mount.bandwidth,
        bandwidth_reached=mount.bandwidth_reached,
        iops=mount.iops,
        iops_reached=mount.iops_reached,
        ridge_bytes=mount.ridge,
        latency_s=mount.request_s(pattern.size),
        roofs=roofs,
        binding=binding,
        deepest=mount.deepest,
        deeper_samples_per_s=deeper,
        words=_words(binding, mount, pattern, deeper),
    )


def _points(records: Sequence[Record]) -> list[Point]:
    """Return the mean rate of every size and depth, over all trials."""
    rates: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for record in records:
        for point in record.ceiling.get("points", ()):
            rate = point["requests"] / point["seconds"]
            rates[point["size"], point["depth"]].append(rate)
    return [Point(size, depth, fmean(each)) for (size, depth), each in sorted(rates.items())]


def _pattern(records: Sequence[Record]) -> Pattern | None:
    """Return what the replay of the case's own samples asked for, and its mean rate."""
    fio = [r.ceiling for r in records if r.ceiling.get("samples_per_s")]
    if not fio:
        return None
    requests = fmean(f["iops"] / f["samples_per_s"] for f in fio)
    return Pattern(
        requests=requests,
        size=fmean(f["io_bytes"] / f["samples"] for f in fio) / requests,
        readers=fio[0]["readers"],
        rate=fmean(f["samples_per_s"] for f in fio),
        opens=fmean(f.get("opens", 0) / f["samples"] for f in fio),
    )


def _words(binding: str | None, mount: MountLimits, pattern: Pattern, deeper: float) -> str:
    request_ms = 1e3 * mount.request_s(pattern.size)
    size = f"{pattern.size / 1024:,.0f} KiB"
    if binding == BANDWIDTH:
        return f"the mount's bandwidth binds: {mount.bandwidth / 1e6:,.1f} MB/s"
    if binding == IOPS:
        ridge = f"those above {mount.ridge / 1024:,.0f} KiB meet its bandwidth"
        larger = ridge if mount.bandwidth_reached else "larger ones would give more bytes"
        return f"the mount's IOPS bind: {mount.iops:,.0f} requests/s, of {size} here; {larger}"
    if binding == METADATA and mount.opens:
        return (
            f"the mount's metadata bind: {mount.opens.per_s:,.0f} opens/s, of which a sample needs "
            f"{pattern.opens:,.1f}"
        )
    if binding == LATENCY:
        return (
            f"the mount's latency binds: a request of {size} takes {request_ms:,.1f} ms, and "
            f"{pattern.readers} are in flight; {mount.deepest} would give up to "
            f"{deeper:,.0f} samples/s"
        )
    return ""
