"""Whether the page-cache evidence of a trial holds: docs/method.md, "Cold and warm"."""

from __future__ import annotations

import contextlib
from typing import List, Sequence, Tuple

from iobench.analysis import page_ins
from iobench.core import stages
from iobench.core.cases import STEADY, STEADY_EPOCHS, Placement
from iobench.core.errors import CacheStateError
from iobench.core.records import EXPLORATORY, INVALID, VALID, CacheProof

#: Share of pages resident before a cold trial (at most), before and after a warm one (at least).
COLD_RESIDENT_MAX, WARM_RESIDENT_MIN = 0.001, 0.999
#: Of the software that ranks start from: share that other running programs, the driver among them,
#: may keep in memory when it is cold.
MAPPED_MAX = 0.05
#: Share of needed bytes that crosses the mount in a cold trial (at least), a warm one (at most).
COLD_BYTES_MIN, WARM_BYTES_MAX = 0.98, 0.01
#: Of a counter of everybody's traffic: share of what reached the page cache that crosses at most.
COLD_BYTES_MAX = 1.10
#: Where warm pages are not locked: what crossed took at most this share of the loop, at the rate of
#: one cold stream.
WARM_TIME_MAX = 0.003
#: A stated cached fraction must be met this closely.
FRACTION_TOLERANCE = 0.02
#: What others may have added to the hit ratio of later epochs.
HIT_RATIO_TOLERANCE = 0.02

Verdict = Tuple[str, Tuple[str, ...]]


def judge(cache: str, stage: str, proof: CacheProof, loop_s: float = 0.0) -> Verdict:
    """Return (status, reasons) of a trial's cache state: VALID, INVALID (disproven), EXPLORATORY.

    ``cache`` is what the trial asked for.  ``loop_s``: how long its slowest rank's loop took, 0
    where it has no times: its calls alone are counted.
    Raises CacheStateError for another word.
    """
    if cache == "-" or not stages.of(stage).reads:
        return VALID, ()
    if stages.of(stage).starts:
        wrong, unknown = _started(cache, proof)
    elif cache == "cold":
        wrong, unknown = _cold(proof)
    elif cache == "warm":
        wrong, unknown = _warm(proof, loop_s)
    elif cache == STEADY:
        wrong, unknown = _steady(proof)
    else:
        wrong, unknown = _partly(_fraction(cache), proof)
    if wrong:
        return INVALID, tuple(wrong + unknown)
    return (EXPLORATORY, tuple(unknown)) if unknown else (VALID, ())


def _started(cache: str, proof: CacheProof) -> Tuple[List[str], List[str]]:
    """Judge a start by what of its software was resident before it.

    Bytes read do not count: the runtime, a daemon or the kernel reads them.
    """
    before = proof.resident_before
    if before is None:
        return [], ["residency before the start could not be proven"]
    if cache == "cold" and before > MAPPED_MAX:
        return [
            f"not cold: {_beyond(before, MAPPED_MAX)} of the software's pages were resident before "
            f"the start (at most {MAPPED_MAX:.0%}: what running programs have mapped stays)"
        ], []
    if cache == "warm" and before < WARM_RESIDENT_MIN:
        return [
            f"not warm: {_beyond(before, WARM_RESIDENT_MIN)} of the software's pages were resident "
            f"before the start (at least {WARM_RESIDENT_MIN:.1%})"
        ], []
    return [], _unseen(proof)


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the worst of several nodes' verdicts, with the reasons of all that share it."""
    for status in (INVALID, EXPLORATORY):
        if reasons := [reason for found, why in verdicts if found == status for reason in why]:
            return status, tuple(reasons)
    return VALID, ()


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
            f"(at least {COLD_BYTES_MIN:.0%}){_kept(proof)}"
        )
    elif crossed is not None and proof.others_bytes is not None:
        unknown += _among_others(crossed, proof.others_bytes, proof)
    return wrong, unknown


def _among_others(crossed: int, others: int, proof: CacheProof) -> List[str]:
    """Return why a counter of everybody's traffic does not prove that our data crossed.

    What reached the page cache is what has to have crossed: read-ahead brings in more than was
    needed, and a client's own cache may have served a part of it.
    """
    reached = max(proof.bytes_needed, proof.bytes_resident or 0)
    if crossed - others < COLD_BYTES_MIN * reached:
        return [
            f"{crossed} bytes crossed the mount, of which up to {others} may be others', and "
            f"{reached} reached the page cache: the rest may have come from this client's memory"
            f"{_kept(proof)}"
        ]
    if crossed - others > COLD_BYTES_MAX * reached + proof.messages_bytes:
        return [
            f"{crossed} bytes crossed the mount, where {reached} reached the page cache (at most "
            f"{COLD_BYTES_MAX:.0%}): among them are others', or the client's read-ahead or messages"
            f"{_kept(proof)}"
        ]
    return []


def _kept(proof: CacheProof) -> str:
    """Return whose bytes were counted and what the client's caches held, as a sentence's end."""
    arms = f"; the {proof.arms} arms of its block were counted together" if proof.arms > 1 else ""
    held = ", ".join(f"{name} {n / 1e6:.1f} MB" for name, n in proof.caches.items() if n)
    if not held:
        return arms
    cures = ["a new mount", *["`allow_drop_caches = true`"] * (proof.label != "client-cold")]
    return f"{arms}; in this client's own caches were {held}: {' or '.join(cures)} empties them"


def _warm(proof: CacheProof, loop_s: float) -> Tuple[List[str], List[str]]:
    """Locked pages stay; what was read back of others is judged by the time that it took.

    By its share of the bytes where no time is known: of a stage without steps, or without a cold
    rate.
    """
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
    took_s = crossed / rate if crossed and rate and loop_s else None
    if took_s is not None and took_s <= WARM_TIME_MAX * loop_s:
        return wrong, unknown
    if crossed is not None and crossed > WARM_BYTES_MAX * proof.bytes_needed:
        words = f"{crossed} bytes crossed the mount, of {proof.bytes_needed} needed"
        if proof.others_bytes is None:
            wrong.append(f"not warm: {words} (at most {WARM_BYTES_MAX:.0%})")
        elif crossed > WARM_BYTES_MAX * proof.bytes_needed + proof.messages_bytes:
            unknown.append(f"{words}: they may be others', all of whom the counter counts")
    elif took_s is not None:
        unknown.append(
            f"the data's pages were not locked ({proof.unheld}), and {crossed} bytes were read "
            f"back: {1e3 * took_s:.1f} ms at the rate of a cold stream, of a loop of "
            f"{1e3 * loop_s:.1f} ms (at most {WARM_TIME_MAX:.1%}); `iobench doctor` says how to "
            "lock them"
        )
    return wrong, unknown


def _steady(proof: CacheProof) -> Tuple[List[str], List[str]]:
    """The first epoch must have crossed the mount; the others did as far as memory held less."""
    wrong, unknown = [], _unknowns(proof) + _unseen(proof)
    before, crossed = proof.resident_before, proof.bytes_storage
    if before is not None and before > COLD_RESIDENT_MAX:
        wrong.append(
            f"not from cold: {_beyond(before, COLD_RESIDENT_MAX)} of the pages were resident "
            f"before the first epoch (at most {COLD_RESIDENT_MAX:.1%})"
        )
    once, others = proof.bytes_needed / STEADY_EPOCHS, proof.others_bytes or 0
    if crossed is not None and crossed < COLD_BYTES_MIN * once:
        wrong.append(
            f"{crossed} bytes crossed the mount in all, where the first epoch needed {once:.0f}"
            f"{_kept(proof)}"
        )
    elif crossed is not None and others > HIT_RATIO_TOLERANCE * (proof.bytes_needed - once):
        unknown.append(
            f"of {crossed} bytes that crossed the mount, {others} may be others': the hit ratio is "
            "not known"
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
            f"not cached{_kept(proof)}"
        )
    elif crossed is not None and crossed - (proof.others_bytes or 0) < (
        COLD_BYTES_MIN * rest * proof.bytes_needed
    ):
        unknown.append(f"of {crossed} bytes that crossed, {proof.others_bytes} may be others'")
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
    """Return a share as a percentage with enough digits to differ from the limit that it missed."""
    digits = next(d for d in range(2, 17) if d == 16 or f"{share:.{d}%}" != f"{limit:.{d}%}")
    return f"{share:.{digits}%}"


def _fraction(cache: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.0 <= float(cache) <= 1.0:
            return float(cache)
    raise CacheStateError(
        f"cache state {cache!r}: say cold, warm, steady, - or a fraction from 0 to 1"
    )


def check(cache: str, placement: Placement) -> None:
    """Raise CacheStateError for a state that cannot be set inside an image."""
    if cache not in ("cold", "warm", "-"):
        what = "" if cache == STEADY else "a cached fraction of "
        raise CacheStateError(
            f"{what}{cache} cannot be set inside an image (placement "
            f"{placement.kind!r}): use cold or warm there"
        )
