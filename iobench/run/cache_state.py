"""Whether the page-cache evidence of a trial holds: docs/method.md, "Cold and warm"."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any, List, Optional, Sequence, Tuple

from iobench.analysis import page_ins
from iobench.core import stages
from iobench.core.cases import Placement
from iobench.core.channel import Prepared
from iobench.core.errors import CacheStateError
from iobench.core.records import EXPLORATORY, INVALID, VALID, CacheProof, IoCounters, RankResult
from iobench.host.agent import NodeAgent
from iobench.worker.cache import AFTER

#: Share of pages resident before a cold trial (at most), before and after a warm one (at least).
COLD_RESIDENT_MAX, WARM_RESIDENT_MIN = 0.001, 0.999
#: Share of needed bytes that crosses the mount in a cold trial (at least), a warm one (at most).
COLD_BYTES_MIN, WARM_BYTES_MAX = 0.98, 0.01
#: Where warm pages are not locked: what crossed took at most this share of the loop, at the rate of
#: one cold stream.
WARM_TIME_MAX = 0.003
#: A stated cached fraction must be met this closely.
FRACTION_TOLERANCE = 0.02

Verdict = Tuple[str, Tuple[str, ...]]


def judge(cache: str, stage: str, proof: CacheProof, loop_s: float = 0.0) -> Verdict:
    """Return (status, reasons) of a trial's cache state: VALID, INVALID (disproven), EXPLORATORY.

    ``cache`` is what the trial asked for.  ``loop_s``: how long its slowest rank's loop took.
    Raises CacheStateError for another word.
    """
    if cache == "-" or not stages.of(stage).reads:
        return VALID, ()
    if cache == "cold":
        wrong, unknown = _cold(proof)
    elif cache == "warm":
        wrong, unknown = _warm(proof, loop_s)
    else:
        wrong, unknown = _partly(_fraction(cache), proof)
    if wrong:
        return INVALID, tuple(wrong + unknown)
    return (EXPLORATORY, tuple(unknown)) if unknown else (VALID, ())


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the worst of several nodes' verdicts, with the reasons of all that share it."""
    for status in (INVALID, EXPLORATORY):
        if reasons := [reason for found, why in verdicts if found == status for reason in why]:
            return status, tuple(reasons)
    return VALID, ()


def whole(cache: str, proofs: Sequence[CacheProof]) -> CacheProof:
    """Return the evidence of several nodes as one: the worst residency, the bytes of all."""
    if len(proofs) == 1:
        return proofs[0]

    def of_all(name: str, take: Any) -> Any:
        found = [getattr(proof, name) for proof in proofs]
        return None if None in found else take(found)

    lies = max if cache == "cold" else min
    return dataclasses.replace(
        proofs[0],
        method=" + ".join(sorted({p.method for p in proofs} - {""})),
        resident_before=of_all("resident_before", lies),
        resident_after=of_all("resident_after", lies),
        bytes_needed=sum(p.bytes_needed for p in proofs),
        bytes_read=sum(p.bytes_read for p in proofs),
        bytes_storage=of_all("bytes_storage", sum),
        unseen=" and ".join(dict.fromkeys(p.unseen for p in proofs if p.unseen)),
        held=all(p.held for p in proofs),
        unheld="; ".join(dict.fromkeys(p.unheld for p in proofs if p.unheld)),
    )


def _cold(proof: CacheProof) -> Tuple[List[str], List[str]]:
    wrong, unknown = [], _unknowns(proof)
    before, crossed = proof.resident_before, proof.bytes_storage
    if before is not None and before > COLD_RESIDENT_MAX:
        wrong.append(
            f"not cold: {_beyond(before, COLD_RESIDENT_MAX)} of the pages were resident before "
            f"(at most {COLD_RESIDENT_MAX:.1%})"
        )
    unknown += _unseen(proof)
    if crossed is not None and crossed < COLD_BYTES_MIN * proof.bytes_needed:
        wrong.append(
            f"not cold: {crossed} of {proof.bytes_needed} bytes needed crossed the mount "
            f"(at least {COLD_BYTES_MIN:.0%})"
        )
    return wrong, unknown


def _warm(proof: CacheProof, loop_s: float) -> Tuple[List[str], List[str]]:
    """Locked pages stay; what was read back of others is judged by the time that it took."""
    wrong, unknown = [], _unknowns(proof)
    rate = proof.cold_bytes_per_s if proof.unheld else None
    counted = rate is not None and proof.bytes_storage is not None
    for when, resident in (("before", proof.resident_before), ("after", proof.resident_after)):
        if when == "after" and counted:
            continue  # how much of it was read back is known better
        if resident is not None and resident < WARM_RESIDENT_MIN:
            wrong.append(
                f"not warm: {_beyond(resident, WARM_RESIDENT_MIN)} of the pages were resident "
                f"{when} (at least {WARM_RESIDENT_MIN:.1%})"
            )
    if proof.resident_before is not None and proof.resident_after is None:
        unknown.append("residency after the trial is not known")
    crossed = page_ins.without_programs("warm", proof)
    if crossed is not None and crossed > WARM_BYTES_MAX * proof.bytes_needed:
        wrong.append(
            f"not warm: {crossed} bytes crossed the mount, of {proof.bytes_needed} needed "
            f"(at most {WARM_BYTES_MAX:.0%})"
        )
    elif crossed and rate and crossed / rate > WARM_TIME_MAX * loop_s:
        unknown.append(
            f"the data's pages were not locked ({proof.unheld}), and {crossed} bytes were read "
            f"back: {1e3 * crossed / rate:.1f} ms at the rate of a cold stream, of a loop of "
            f"{1e3 * loop_s:.1f} ms (at most {WARM_TIME_MAX:.1%}); `iobench doctor` says how to "
            "lock them"
        )
    return wrong, unknown


def _partly(fraction: float, proof: CacheProof) -> Tuple[List[str], List[str]]:
    """The uncached rest must cross the mount; read-ahead may bring more, so there is no top."""
    wrong, unknown = [], _unknowns(proof) + _unseen(proof)
    before, crossed = proof.resident_before, proof.bytes_storage
    if before is not None and abs(before - fraction) > FRACTION_TOLERANCE:
        wrong.append(f"{before:.2%} of the pages were resident before, {fraction:.2%} asked for")
    rest = 1.0 - (fraction if before is None else before)
    if crossed is not None and crossed < COLD_BYTES_MIN * rest * proof.bytes_needed:
        wrong.append(
            f"{crossed} bytes crossed the mount, of {rest * proof.bytes_needed:.0f} that were "
            "not cached"
        )
    return wrong, unknown


def _unknowns(proof: CacheProof) -> List[str]:
    unknown = []
    if proof.resident_before is None:
        unknown.append("residency before the trial could not be proven")
    if proof.bytes_storage is None:
        why = f" ({proof.counter})" if proof.counter else ""
        unknown.append(f"nothing here counts the bytes that cross this mount{why}")
    return unknown


def _unseen(proof: CacheProof) -> List[str]:
    words = f"{proof.unseen} may have had data in memory, where nobody can look"
    return [words] if proof.unseen else []


def _beyond(share: float, limit: float) -> str:
    """Return a share as a percentage whose digits tell it from the limit that it missed."""
    digits = next(d for d in range(2, 17) if d == 16 or f"{share:.{d}%}" != f"{limit:.{d}%}")
    return f"{share:.{digits}%}"


def _fraction(cache: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.0 <= float(cache) <= 1.0:
            return float(cache)
    raise CacheStateError(f"cache state {cache!r}: say cold, warm, - or a fraction from 0 to 1")


def check(cache: str, placement: Placement) -> None:
    """Raise CacheStateError for a state that cannot be set inside an image."""
    if cache not in ("cold", "warm", "-"):
        raise CacheStateError(
            f"a cached fraction of {cache} cannot be set inside an image (placement "
            f"{placement.kind!r}): use cold or warm there"
        )


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


def after_here(
    proof: CacheProof,
    ranks: Sequence[RankResult],
    files: Sequence[Path],
    agent: NodeAgent,
    *,
    by_fio: bool,
) -> CacheProof:
    """Return the proof with what of ``files`` is resident now and what crossed their mount.

    ``by_fio``: fio read them, whose count of ``read_bytes`` is in the proof, and not the ranks.
    """
    found = dataclasses.replace(
        proof,
        resident_after=agent.residency(files).fraction,
        bytes_needed=sum(r.bytes_needed for r in ranks),
    )
    if by_fio:
        count, counter = agent.storage_bytes(files[0], IoCounters())
        storage_bytes = None if count is None else found.bytes_storage
        return dataclasses.replace(found, bytes_storage=storage_bytes, counter=counter)
    counted = [agent.storage_bytes(files[0], r.io) for r in ranks]
    storage = [n for n, _ in counted]
    return dataclasses.replace(
        found,
        bytes_read=sum(r.io.rchar for r in ranks),
        bytes_storage=None if None in storage else sum(n for n in storage if n is not None),
        counter=counted[0][1] if counted else "",
    )


def _storage(ranks: Sequence[RankResult], placement: Placement) -> Tuple[Optional[int], str]:
    """Return the bytes that the ranks had a block device deliver.

    None where another process reads for them (squashfuse), or nothing says who does.
    """
    fstypes = {str(r.fingerprint.get("mount", {}).get("fstype", "")) for r in ranks}
    if placement.filesystem != "squashfs" or not fstypes <= {"squashfs", "overlay"}:
        where = ", ".join(sorted(fstypes)) or "a filesystem that nothing names"
        return None, f"inside the container they are on {where}"
    return sum(r.io.read_bytes for r in ranks), "read_bytes of /proc/self/io, at the loop device"
