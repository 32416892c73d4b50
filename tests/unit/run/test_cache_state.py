"""Cold and warm by a counter of everybody's traffic: what it proves, and what it leaves open."""

from __future__ import annotations

import dataclasses

import pytest

from iobench.core.records import EXPLORATORY, INVALID, VALID, CacheProof
from iobench.run.cache_proof import apart
from iobench.run.cache_state import judge

NEEDED = 1_000_000
COLD = CacheProof("data-cold", "cachestat", 0.0, bytes_needed=NEEDED, others_bytes=0)


@pytest.mark.parametrize(
    ("crossed", "others", "resident", "status", "word"),
    [
        (1_000_000, 0, 1_000_000, VALID, ""),
        (980_000, 0, 1_000_000, VALID, ""),
        (979_999, 0, 1_000_000, INVALID, "979999 of 1000000 bytes needed"),
        (1_100_000, 0, 1_000_000, VALID, ""),
        (1_100_001, 0, 1_000_000, EXPLORATORY, "among them are others'"),
        # others' share, measured before, widens what may have crossed and takes from what did
        (1_150_000, 60_000, 1_000_000, VALID, ""),
        (1_000_000, 60_000, 1_000_000, EXPLORATORY, "up to 60000 may be others'"),
        # read-ahead brought in more than was needed: that has to have crossed as well
        (1_500_000, 0, 1_500_000, VALID, ""),
        (1_000_000, 0, 1_500_000, EXPLORATORY, "may have come from this client's memory"),
        # pages that the kernel took back since: what was needed still counts
        (1_000_000, 0, 100_000, VALID, ""),
        (1_000_000, 0, None, VALID, ""),
    ],
)
def test_cold(crossed: int, others: int, resident: int | None, status: str, word: str) -> None:
    proof = dataclasses.replace(
        COLD, bytes_storage=crossed, others_bytes=others, bytes_resident=resident
    )
    found, reasons = judge("cold", "read", proof)
    assert found == status, reasons
    assert word in "".join(reasons)


def test_a_counter_of_our_own_has_no_upper_bound() -> None:
    proof = dataclasses.replace(COLD, bytes_storage=9 * NEEDED, others_bytes=None)
    assert judge("cold", "read", proof) == (VALID, ())


def test_a_protocols_own_messages_are_no_neighbours() -> None:
    proof = dataclasses.replace(COLD, bytes_storage=1_150_000)
    assert judge("cold", "read", proof)[0] == EXPLORATORY
    assert judge("cold", "read", dataclasses.replace(proof, messages_bytes=50_000))[0] == VALID


def test_what_the_client_kept_is_named() -> None:
    proof = dataclasses.replace(COLD, bytes_storage=5, caches={"io-cache": 14_000_000, "q": 0})
    (reason,) = judge("cold", "read", proof)[1]
    assert reason.endswith(
        "in this client's own caches were io-cache 14.0 MB: a new mount or "
        "`allow_drop_caches = true` empties them"
    )
    (reason,) = judge("cold", "read", dataclasses.replace(proof, label="client-cold"))[1]
    assert reason.endswith("io-cache 14.0 MB: a new mount empties them")


def test_arms_that_were_counted_together_are_named() -> None:
    for crossed in (5, 990_000, 2_000_000):
        proof = dataclasses.replace(COLD, bytes_storage=crossed, others_bytes=20_000, arms=2)
        (reason,) = judge("cold", "read", proof)[1]
        assert reason.endswith("; the 2 arms of its block were counted together")


def test_an_arm_is_proven_where_all_of_its_block_are() -> None:
    """Each is left with what the others cannot have had."""
    needed = (1_000_000, 500_000, 250_000)
    for crossed, status in ((1_750_000, VALID), (1_746_000, VALID), (1_744_000, INVALID)):
        arms = apart(
            [
                dataclasses.replace(COLD, bytes_needed=n, bytes_storage=crossed, messages_bytes=9)
                for n in needed
            ]
        )
        assert [arm.bytes_storage for arm in arms] == [n - 1_750_000 + crossed for n in needed]
        assert {(arm.arms, arm.messages_bytes) for arm in arms} == {(3, 27)}
        assert judge("cold", "read", arms[2])[0] == status


def test_where_nothing_counts_the_reason_is_given() -> None:
    proof = dataclasses.replace(COLD, others_bytes=None, counter="nobody may ask the daemon")
    assert judge("cold", "read", proof) == (
        EXPLORATORY,
        ("nothing here counts the bytes that cross this mount (nobody may ask the daemon)",),
    )


@pytest.mark.parametrize(
    ("crossed", "others", "status"),
    [(10_000, 0, VALID), (10_001, 0, EXPLORATORY), (10_001, None, INVALID)],
)
def test_warm_is_not_disproved_by_neighbours(crossed: int, others: int | None, status: str) -> None:
    proof = CacheProof(
        "warm", "cachestat", 1.0, 1.0, NEEDED, bytes_storage=crossed, others_bytes=others
    )
    assert judge("warm", "read", proof)[0] == status


@pytest.mark.parametrize(
    ("crossed", "others", "status"),
    [(490_000, 0, VALID), (489_999, 0, INVALID), (490_000, 1, EXPLORATORY)],
)
def test_a_fraction_is_what_was_not_cached(crossed: int, others: int, status: str) -> None:
    proof = dataclasses.replace(
        COLD, label="fraction", resident_before=0.5, bytes_storage=crossed, others_bytes=others
    )
    assert judge("0.5", "read", proof)[0] == status


@pytest.mark.parametrize(
    ("before", "crossed", "others", "status", "word"),
    [
        (0.0, 1_400_000, 0, VALID, ""),
        (0.0, 3_000_000, None, VALID, ""),  # nothing stayed
        (0.0, 1_000_000, 0, VALID, ""),  # all of it did
        (0.5, 1_400_000, 0, INVALID, "not from cold: 50.00%"),
        (0.0, 900_000, 0, INVALID, "900000 bytes crossed the mount in all"),
        (0.0, 1_400_000, 50_000, EXPLORATORY, "50000 may be others'"),
        (0.0, None, None, EXPLORATORY, "nothing here counts"),
    ],
)
def test_steady(
    before: float, crossed: int | None, others: int | None, status: str, word: str
) -> None:
    """Three epochs need a million bytes each; the first of them from the mount."""
    proof = dataclasses.replace(
        COLD, label="steady", resident_before=before, bytes_needed=3 * NEEDED,
        bytes_storage=crossed, others_bytes=others,
    )  # fmt: skip
    found, reasons = judge("steady", "read", proof)
    assert found == status, reasons
    assert word in "".join(reasons)
