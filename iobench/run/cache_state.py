"""Whether the page-cache evidence of a trial holds: docs/method.md, "Cold and warm"."""

from __future__ import annotations

from typing import List, Optional, Tuple

from iobench.errors import CacheStateError
from iobench.model import EXPLORATORY, INVALID, VALID, CacheProof

#: At most this fraction of the pages may be resident before a cold trial.
COLD_RESIDENT_MAX = 0.001
#: At least this fraction must be resident before and after a warm one.
WARM_RESIDENT_MIN = 0.999
#: Of the bytes needed, at least this share must cross the mount in a cold trial ...
COLD_BYTES_MIN = 0.98
#: ... and at most this one in a warm trial.
WARM_BYTES_MAX = 0.01
#: A stated cached fraction must be met this closely.
FRACTION_TOLERANCE = 0.02

Verdict = Tuple[str, Tuple[str, ...]]


def judge(cache: str, stage: str, proof: CacheProof) -> Verdict:
    """Return (status, reasons) of a trial's cache state.

    ``cache`` is what the trial asked for: ``cold``, ``warm``, ``-`` or a fraction ("0.35").  VALID:
    proven.  INVALID: disproven.  EXPLORATORY: nothing here can tell.  Raises CacheStateError for
    another word.
    """
    if cache == "-" or stage in ("compute", "alone"):
        return VALID, ()
    if cache == "cold":
        wrong, unknown = _cold(proof)
    elif cache == "warm":
        wrong, unknown = _warm(proof)
    else:
        wrong, unknown = _partly(_fraction(cache), proof)
    if wrong:
        return INVALID, tuple(wrong + unknown)
    return (EXPLORATORY, tuple(unknown)) if unknown else (VALID, ())


def _cold(proof: CacheProof) -> Tuple[List[str], List[str]]:
    wrong, unknown = [], _unknowns(proof)
    before, crossed = proof.resident_before, proof.bytes_storage
    if before is not None and before > COLD_RESIDENT_MAX:
        wrong.append(
            f"not cold: {before:.2%} of the pages were resident before "
            f"(at most {COLD_RESIDENT_MAX:.1%})"
        )
    if crossed is not None and crossed < COLD_BYTES_MIN * proof.bytes_needed:
        wrong.append(
            f"not cold: {crossed} of {proof.bytes_needed} bytes needed crossed the mount "
            f"(at least {COLD_BYTES_MIN:.0%})"
        )
    return wrong, unknown


def _warm(proof: CacheProof) -> Tuple[List[str], List[str]]:
    wrong, unknown = [], _unknowns(proof)
    for when, resident in (("before", proof.resident_before), ("after", proof.resident_after)):
        if resident is not None and resident < WARM_RESIDENT_MIN:
            wrong.append(
                f"not warm: {resident:.2%} of the pages were resident {when} "
                f"(at least {WARM_RESIDENT_MIN:.1%})"
            )
    if proof.resident_before is not None and proof.resident_after is None:
        unknown.append("residency after the trial is not known")
    crossed = proof.bytes_storage
    if crossed is not None and crossed > WARM_BYTES_MAX * proof.bytes_needed:
        wrong.append(
            f"not warm: {crossed} bytes crossed the mount, of {proof.bytes_needed} needed "
            f"(at most {WARM_BYTES_MAX:.0%})"
        )
    return wrong, unknown


def _partly(fraction: float, proof: CacheProof) -> Tuple[List[str], List[str]]:
    """The uncached rest must cross the mount; read-ahead may bring more, so there is no top."""
    wrong, unknown = [], _unknowns(proof)
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
        unknown.append("nothing here counts the bytes that cross this mount")
    return unknown


def _fraction(cache: str) -> float:
    value: Optional[float]
    try:
        value = float(cache)
    except ValueError:
        value = None
    if value is None or not 0.0 <= value <= 1.0:
        raise CacheStateError(f"cache state {cache!r}: say cold, warm, - or a fraction from 0 to 1")
    return value
