"""Cache state of data that only a container sees as files: set and proven by its worker.

A filesystem image is a file on the host, which the driver evicts and proves; the pages of the files
in it belong to the mount inside the container and are gone with it.  So the worker evicts or reads
all of them, untimed, and counts what is resident, right before the clock starts and after it stops.

Worker side: Python 3.9, NumPy and the standard library.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from iobench import pagecache
from iobench.errors import CacheStateError
from iobench.model import CacheProof, Placement, RankResult

#: Key of a result's notes: what was resident after the loop.
AFTER = "resident_after"


def prepare(cache: str, files: Sequence[Path]) -> Dict[str, Any]:
    """Bring the files into the state ``cold`` or ``warm``; return what :func:`look` finds."""
    if cache == "warm":
        pagecache.check_warmable(sum(f.stat().st_size for f in files))
        pagecache.warm(files)
    else:
        pagecache.evict(files)
    return look(files)


def look(files: Sequence[Path]) -> Dict[str, Any]:
    """Return the share of the files' pages that is resident (None: unproven), and by which call."""
    found = pagecache.residency(files)
    return {"fraction": found.fraction, "method": found.method}


def check(cache: str, placement: Placement) -> None:
    """Raise CacheStateError for a state that cannot be set inside an image."""
    if cache not in ("cold", "warm", "-"):
        raise CacheStateError(
            f"a cached fraction of {cache} cannot be set inside an image (placement "
            f"{placement.kind!r}): use cold or warm there"
        )


def before(cache: str, host: CacheProof, seen: Sequence[Mapping[str, Any]]) -> CacheProof:
    """Return the proof before the clock starts.

    ``host``: of the file that holds the data, where there is one.  ``seen``: :func:`prepare` of
    each rank.  Cold counts the worst of them; warm data need not be cached a second time below.
    """
    found = [s["fraction"] for s in seen]
    methods = sorted(
        {f"{s['method']} inside" for s in seen} | ({host.method} if host.method else set())
    )
    if cache == "cold" and host.method:
        found.append(host.resident_before)
    worst = max if cache == "cold" else min
    return dataclasses.replace(
        host,
        label="data-cold" if cache == "cold" else cache,
        method=" + ".join(methods),
        resident_before=None if None in found else worst(found),
    )


def after(proof: CacheProof, ranks: Sequence[RankResult], placement: Placement) -> CacheProof:
    """Return the proof with what the ranks found resident and what crossed their mount."""
    left = [r.notes.get(AFTER, {}).get("fraction") for r in ranks]
    storage, counter = _storage(ranks, placement)
    return dataclasses.replace(
        proof,
        resident_after=None if None in left or not left else min(left),
        bytes_needed=sum(r.bytes_needed for r in ranks),
        bytes_read=sum(r.io.rchar for r in ranks),
        bytes_storage=storage,
        counter=counter,
    )


def _storage(ranks: Sequence[RankResult], placement: Placement) -> Tuple[Optional[int], str]:
    """Return the bytes that the ranks had a block device deliver.

    None where another process reads for them (squashfuse), or nothing says who does.
    """
    fstypes = {str(r.fingerprint.get("mount", {}).get("fstype", "")) for r in ranks}
    if placement.filesystem != "squashfs" or not fstypes <= {"squashfs", "overlay"}:
        return None, ""
    return sum(r.io.read_bytes for r in ranks), "read_bytes of /proc/self/io, at the loop device"
