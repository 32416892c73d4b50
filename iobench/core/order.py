"""Which samples one rank reads in one epoch, and in what order."""

from __future__ import annotations

import re
from typing import Any, Sequence

import numpy as np

from iobench.core.errors import SpecError
from iobench.core.transforms import mix64

_SUBSET, _SHUFFLE = 1, 2
SHARINGS = ("stride", "disjoint")
#: Orders that are one sequence of ids, known beforehand: what a loader follows unless it says.
SEQUENCES = frozenset({"stored", "shuffled", "window"})


def check_order(order: str) -> int:
    """Return the shuffle window that ``order`` asks for: 0 stored, -1 whole epoch, else N.

    0 for ``shards:N`` too, whose sequence the loader draws.  Raises SpecError when it is none of
    ``stored``, ``shuffled``, ``window:N``, ``shards:N`` (N of at least 2 and at most nine digits).
    """
    if order == "stored":
        return 0
    if order == "shuffled":
        return -1
    match = re.fullmatch(r"(window|shards):([0-9]{1,9})", order)
    if match and int(match[2]) >= 2:
        return int(match[2]) if match[1] == "window" else 0
    raise SpecError(
        f"order {order!r} is not possible; allowed: stored, shuffled, window:N, shards:N (N at "
        "least 2, at most 999999999)"
    )


def shard_buffer(order: str) -> int:
    """Return the samples in the shuffle buffer of each process, 0 for orders but ``shards:N``.

    There the loader streams whole shards in an order that it draws: the samples of an epoch are
    known, their sequence is not.
    """
    kind, _, held = order.partition(":")
    return int(held) if kind == "shards" else 0


def subset(n: int, limit: int, *, seed: int) -> np.ndarray:
    """Return ``limit`` of ``n`` sample ids, ascending (all of them when ``limit`` is 0 or more).

    Depends on the seed alone: the same samples for every order, epoch, rank and pipeline.
    """
    if limit <= 0 or limit >= n:
        return np.arange(n, dtype=np.int64)
    chosen = np.random.default_rng([_SUBSET, seed]).permutation(n)[:limit]
    return np.sort(chosen).astype(np.int64)


def sample_order(
    n: int,
    order: str,
    *,
    seed: int,
    epoch: int = 0,
    rank: int = 0,
    world_size: int = 1,
    batch: int = 64,
    limit: int = 0,
    sharing: str = "stride",
) -> np.ndarray:
    """Return the ids (int64) that ``rank`` reads in ``epoch``, whole batches only.

    First the subset is chosen (``limit`` of ``n``, by the seed alone) and cut to whole batches on
    every rank, so that its multiset is the same whatever the order and the epoch; then it is
    ordered; then rank r takes every ``world_size``-th id from r on (``stride``: as Caffe and
    DistributedSampler share a list) or the r-th part of it (``disjoint``).  ``window:N`` is a
    shuffle buffer of N over the stored order; ids of ``shards:N`` ascend.

    Raises SpecError when a rank would get no whole batch, or for an impossible order or sharing.
    """
    window = check_order(order)
    if sharing not in SHARINGS:
        raise SpecError(f"sharing {sharing!r} is not possible; allowed: {', '.join(SHARINGS)}")
    if not 0 <= rank < world_size:
        raise SpecError(f"rank {rank} is not within a world of {world_size}")
    total = n if limit <= 0 else min(limit, n)
    whole = total - remainder(total, batch, world_size)
    if whole == 0:
        raise SpecError(
            f"{total} samples are no whole batch of {batch} on {world_size} rank(s): "
            "use a smaller batch or more samples"
        )
    # all of them: the stored order's tail goes; fewer: a smaller draw
    ids = np.arange(whole, dtype=np.int64) if total == n else subset(n, whole, seed=seed)
    if window:
        random = np.random.default_rng([_SHUFFLE, seed, epoch])
        ids = random.permutation(ids) if window < 0 else _windowed(ids, window, random)
    if sharing == "disjoint":
        return np.ascontiguousarray(np.split(ids, world_size)[rank])
    return np.ascontiguousarray(ids[rank::world_size])


def remainder(total: int, batch: int, world_size: int) -> int:
    """Return how many of ``total`` samples an epoch leaves out: no batch on every rank."""
    return total % (batch * world_size)


def epochs(count: int, n: int, order: str, **others: Any) -> np.ndarray:
    """Return the ids of ``count`` epochs, one after the other (:func:`sample_order`)."""
    return np.concatenate([sample_order(n, order, epoch=k, **others) for k in range(count)])


def multiset_sum(ids: np.ndarray) -> str:
    """Return 128 bits (hex) of the multiset of ids; those of disjoint parts add up.

    So the samples of two ranks together compare with those of one (:func:`add_sums`).  Each id is
    spread by the finaliser of splitmix64 (Steele et al. 2014), once for each half.
    """
    halves = []
    for salt in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03):
        mixed = mix64(np.asarray(ids).astype(np.uint64) + np.uint64(salt))
        halves.append(f"{int(mixed.sum(dtype=np.uint64)):016x}")
    return "".join(halves)


def add_sums(sums: Sequence[str]) -> str:
    """Return the :func:`multiset_sum` of several parts together; "" where one is not known."""
    if not sums or not all(sums):
        return ""
    halves = (sum(int(s[at : at + 16], 16) for s in sums) % (1 << 64) for at in (0, 16))
    return "".join(f"{half:016x}" for half in halves)


def _windowed(ids: np.ndarray, window: int, random: np.random.Generator) -> np.ndarray:
    """Pass ``ids`` through a shuffle buffer: emit a random slot, refill it with the next id."""
    count = len(ids)
    held = min(window, count)
    buffer = ids[:held].copy()
    out = np.empty_like(ids)
    slots = random.integers(0, held, size=count - held)
    for i, slot in enumerate(slots):
        out[i] = buffer[slot]
        buffer[slot] = ids[held + i]
    out[count - held :] = random.permutation(buffer)
    return out
