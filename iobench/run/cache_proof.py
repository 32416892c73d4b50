"""The page-cache evidence of a trial: what was resident before and after, and what crossed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence
from typing import Counter as CounterType

from iobench.core.cases import STEADY, Placement
from iobench.core.channel import Prepared
from iobench.core.protocols import Crossed
from iobench.core.records import CacheProof, IoCounters, RankResult
from iobench.host.agent import NodeAgent
from iobench.worker.cache import AFTER

#: At most so many bytes a file are a protocol's own messages (lookup, open, attributes, close).
MESSAGES_BYTES = 2048


def before(cache: str, host: CacheProof, seen: Sequence[Prepared]) -> CacheProof:
    """Return the proof before the clock starts.

    ``host``: of the file that holds the data, where there is one.  ``seen``: what each rank found
    on its node.  Cold counts the worst of them; warm data need not be cached a second time below.
    """
    found: List[Any] = [s.fraction for s in seen]
    methods = sorted(
        {f"{s.method} inside" for s in seen} | ({host.method} if host.method else set())
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


def after(
    proof: CacheProof,
    ranks: Sequence[RankResult],
    placement: Placement,
    below: Optional[Crossed] = None,
    others: int = 0,
) -> CacheProof:
    """Return the proof with what the ranks found resident and what crossed their mount.

    ``below``: what crossed the mount of the file that holds the data, where there is one.
    ``others``: the bytes that others may have moved over it meanwhile.
    """
    left = [r.notes.get(AFTER, {}).get("fraction") for r in ranks]
    return dataclasses.replace(
        _counted(proof, _least(_storage(ranks, placement), below), others),
        resident_after=None if None in left or not left else min(left),
        bytes_needed=sum(r.bytes_needed for r in ranks),
        bytes_read=sum(r.io.rchar for r in ranks),
    )


def after_here(
    proof: CacheProof,
    ranks: Sequence[RankResult],
    files: Sequence[Path],
    agent: NodeAgent,
    crossed: Crossed,
    others: int = 0,
    *,
    by_fio: Optional[int] = None,
    opened: int = 1,
) -> CacheProof:
    """Return the proof with what of ``files`` is resident now and what crossed their mount.

    ``others``: the bytes that others may have moved over it meanwhile.  ``by_fio``: bytes that fio
    read in the ranks' place.  ``opened``: how often each of the files was opened.
    """
    left = agent.residency(files)
    return dataclasses.replace(
        _counted(proof, crossed, others),
        resident_after=left.fraction,
        bytes_resident=None if left.fraction is None else left.nbytes,
        bytes_needed=sum(r.bytes_needed for r in ranks) if by_fio is None else by_fio,
        bytes_read=sum(r.io.rchar for r in ranks) if by_fio is None else 0,
        messages_bytes=MESSAGES_BYTES * len(files) * opened if crossed.whole else 0,
    )


def _counted(proof: CacheProof, crossed: Crossed, others: int) -> CacheProof:
    return dataclasses.replace(
        proof,
        bytes_storage=crossed.nbytes,
        counter=crossed.counter,
        others_bytes=others if crossed.whole else None,
    )


def apart(proofs: Sequence[CacheProof]) -> List[CacheProof]:
    """Return the proofs of cold arms that took turns on one mount, whose counter counts them all.

    Of what crossed it, an arm is left with what the others cannot have had: all that reached the
    page cache for them.  So each is proven only where all of them are.
    """
    reached = [max(p.bytes_needed, p.bytes_resident or 0) for p in proofs]
    messages = sum(p.messages_bytes for p in proofs)
    return [
        dataclasses.replace(
            proof,
            bytes_storage=max(0, (proof.bytes_storage or 0) - (sum(reached) - own)),
            counter=f"{proof.counter}, less what reached the page cache for the block's other arms",
            messages_bytes=messages,
            arms=len(proofs),
        )
        for proof, own in zip(proofs, reached)
    ]


def io_of(ranks: Sequence[RankResult]) -> IoCounters:
    """Return what the ranks made storage deliver, together."""
    return IoCounters(read_bytes=sum(rank.io.read_bytes for rank in ranks))


def _least(found: Crossed, below: Optional[Crossed]) -> Crossed:
    """Return the lower count: the data must cross both mounts; uncounted where one of them is."""
    if below is None or found.nbytes is None:
        return found
    return below if below.nbytes is None or below.nbytes < found.nbytes else found


def _storage(ranks: Sequence[RankResult], placement: Placement) -> Crossed:
    """Return the bytes that the ranks had a block device deliver.

    None where another process reads for them (squashfuse), or nothing says who does.
    """
    fstypes = {str(r.fingerprint.get("mount", {}).get("fstype", "")) for r in ranks}
    if placement.filesystem != "squashfs" or not fstypes <= {"squashfs", "overlay"}:
        where = ", ".join(sorted(fstypes)) or "a filesystem that nothing names"
        return Crossed(None, f"inside the container they are on {where}")
    return Crossed(io_of(ranks).read_bytes, "read_bytes of /proc/self/io, at the loop device")


def whole(cache: str, proofs: Sequence[CacheProof]) -> CacheProof:
    """Return the evidence of several nodes as one: the worst residency, the bytes of all."""
    if len(proofs) == 1:
        return proofs[0]

    def of_all(name: str, take: Any) -> Any:
        found = [getattr(proof, name) for proof in proofs]
        return None if None in found else take(found)

    lies = max if cache in ("cold", STEADY) else min
    return dataclasses.replace(
        proofs[0],
        method=" + ".join(sorted({p.method for p in proofs} - {""})),
        resident_before=of_all("resident_before", lies),
        resident_after=of_all("resident_after", lies),
        bytes_needed=sum(p.bytes_needed for p in proofs),
        bytes_read=sum(p.bytes_read for p in proofs),
        bytes_storage=of_all("bytes_storage", sum),
        bytes_resident=of_all("bytes_resident", sum),
        others_bytes=of_all("others_bytes", sum),
        messages_bytes=sum(p.messages_bytes for p in proofs),
        caches=added(p.caches for p in proofs),
        unseen=" and ".join(dict.fromkeys(p.unseen for p in proofs if p.unseen)),
        held=all(p.held for p in proofs),
        unheld="; ".join(dict.fromkeys(p.unheld for p in proofs if p.unheld)),
    )


def added(counts: Iterable[Mapping[str, int]]) -> Dict[str, int]:
    """Return name -> the sum of several nodes' counts."""
    total: CounterType[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)
