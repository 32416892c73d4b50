"""Executable page-ins: bytes that crossed the mount in a warm trial and were no data's.

A container's code is paged in while the loop runs, and every mount of a SIF begins with none of it
cached; so is the code of a program that a trainer starts.  A record keeps what was counted.
"""

from __future__ import annotations

from iobench.core.records import CacheProof, Record


def data_bytes(record: Record) -> int | None:
    """Return the bytes of data that crossed the mount; None where nothing counted them."""
    return without_programs(record.trial.cache, record.cache)


def without_programs(cache: str, proof: CacheProof) -> int | None:
    """Exclude executable page-ins from the bytes read (warm trials only).

    Data that are wholly resident before and after were not read from storage: where their pages
    were locked, or where ``programs`` paged in their own files, all that was counted is programs'.
    """
    resident = proof.resident_before == proof.resident_after == 1.0
    if cache == "warm" and (proof.held or proof.programs) and resident and proof.bytes_storage:
        return 0
    return proof.bytes_storage
