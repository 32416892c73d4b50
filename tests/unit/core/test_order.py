"""Which samples, and in what order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iobench.core.errors import SpecError
from iobench.core.order import (
    SHARINGS,
    add_sums,
    check_order,
    multiset_sum,
    sample_order,
    shard_buffer,
    subset,
)

ORDERS = ["stored", "shuffled", "window:2", "window:10", "window:1000", "shards:10"]


@settings(deadline=None)
@given(
    n=st.integers(1, 300),
    batch=st.integers(1, 16),
    world=st.integers(1, 5),
    limit=st.integers(0, 320),
    epoch=st.integers(0, 3),
    seed=st.integers(0, 5),
)
def test_ranks_share_one_multiset_whatever_the_order(
    n: int, batch: int, world: int, limit: int, epoch: int, seed: int
) -> None:
    total = min(n, limit) if limit else n
    if total < batch * world:
        with pytest.raises(SpecError, match="no whole batch"):
            sample_order(n, "stored", seed=seed, batch=batch, world_size=world, limit=limit)
        return
    multisets = []
    for order in ORDERS:
        ranks = [
            sample_order(
                n,
                order,
                seed=seed,
                epoch=epoch,
                rank=r,
                world_size=world,
                batch=batch,
                limit=limit,
            )
            for r in range(world)
        ]
        assert len({len(r) for r in ranks}) == 1
        assert len(ranks[0]) % batch == 0
        assert total - batch * world < sum(map(len, ranks)) <= total
        every = np.concatenate(ranks)
        assert every.dtype == np.int64
        assert len(np.unique(every)) == len(every)
        assert every.min() >= 0
        assert every.max() < n
        multisets.append(np.sort(every).tolist())
    assert all(m == multisets[0] for m in multisets)


def test_stored_ascends_and_shuffled_does_not() -> None:
    stored = sample_order(64, "stored", seed=1, batch=8)
    assert stored.tolist() == list(range(64))
    assert sample_order(64, "stored", seed=1, batch=8, epoch=3).tolist() == list(range(64))
    shuffled = sample_order(64, "shuffled", seed=1, batch=8)
    assert shuffled.tolist() != stored.tolist()
    assert shuffled.tolist() == sample_order(64, "shuffled", seed=1, batch=8).tolist()
    assert shuffled.tolist() != sample_order(64, "shuffled", seed=1, batch=8, epoch=1).tolist()
    assert shuffled.tolist() != sample_order(64, "shuffled", seed=2, batch=8).tolist()


def test_ranks_interleave() -> None:
    whole = sample_order(40, "shuffled", seed=3, batch=4)
    parts = [sample_order(40, "shuffled", seed=3, batch=2, rank=r, world_size=2) for r in (0, 1)]
    assert parts[0].tolist() == whole[0::2].tolist()
    assert parts[1].tolist() == whole[1::2].tolist()


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("order", ORDERS)
def test_ranks_share_every_row_once(order: str, sharing: str) -> None:
    whole = sample_order(60, order, seed=3, batch=4, limit=48)
    parts = [
        sample_order(60, order, seed=3, batch=4, rank=r, world_size=3, limit=48, sharing=sharing)
        for r in range(3)
    ]
    every = np.concatenate(parts)
    assert sorted(every.tolist()) == sorted(whole.tolist())
    assert {len(p) for p in parts} == {16}
    if sharing == "disjoint":  # rank after rank is the one order again
        assert every.tolist() == whole.tolist()
    else:  # step after step is
        assert np.stack(parts, axis=1).reshape(-1).tolist() == whole.tolist()
    assert add_sums([multiset_sum(p) for p in parts]) == multiset_sum(whole)


def test_a_disjoint_share_of_the_stored_order_is_contiguous() -> None:
    part = sample_order(64, "stored", seed=1, batch=4, rank=2, world_size=4, sharing="disjoint")
    assert part.tolist() == list(range(32, 48))


def test_another_sharing_names_what_is_allowed() -> None:
    with pytest.raises(SpecError, match="allowed: stride, disjoint"):
        sample_order(10, "stored", seed=0, batch=2, sharing="random")


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**40), max_size=40), st.integers(0, 40), st.randoms())
def test_sums_of_parts_are_the_sum_of_the_whole(ids: list[int], cut: int, random: object) -> None:
    whole = np.array(ids, np.int64)
    mixed = list(ids)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert multiset_sum(np.array(mixed, np.int64)) == multiset_sum(whole)
    assert add_sums([multiset_sum(whole[:cut]), multiset_sum(whole[cut:])]) == multiset_sum(whole)
    more = multiset_sum(np.append(whole, 7))
    assert more != multiset_sum(whole)
    assert more != multiset_sum(np.append(whole, 8))


def test_a_sum_is_not_known_where_a_part_is_not() -> None:
    assert add_sums([multiset_sum(np.arange(3)), ""]) == ""
    assert add_sums([]) == ""
    assert len(multiset_sum(np.arange(3))) == 32


@pytest.mark.parametrize("window", [2, 8, 50])
def test_a_window_emits_no_sample_early(window: int) -> None:
    ids = sample_order(512, f"window:{window}", seed=4, batch=8)
    # the id at place k has entered the buffer by then: it is at most k + window - 1
    assert (ids <= np.arange(512) + window - 1).all()
    assert (ids != np.arange(512)).mean() > 0.4
    assert ids.tolist() != sample_order(512, f"window:{window}", seed=4, batch=8, epoch=1).tolist()


def test_the_limit_is_spread_over_the_dataset_and_free_of_the_epoch() -> None:
    chosen = sample_order(10_000, "stored", seed=1, batch=10, limit=100)
    assert len(chosen) == 100
    assert chosen.max() > 9000
    assert (np.diff(chosen) > 0).all()
    later = sample_order(10_000, "shuffled", seed=1, batch=10, limit=100, epoch=5)
    assert sorted(later.tolist()) == chosen.tolist()
    other = sample_order(10_000, "stored", seed=2, batch=10, limit=100)
    assert other.tolist() != chosen.tolist()
    assert subset(5, 0, seed=1).tolist() == [0, 1, 2, 3, 4]
    assert subset(5, 9, seed=1).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "order", ["", "random", "window", "window:", "window:1", "window:-3", "w:2"]
)
def test_impossible_orders_name_what_is_allowed(order: str) -> None:
    with pytest.raises(SpecError, match="allowed: stored, shuffled, window:N"):
        sample_order(10, order, seed=0, batch=2)


def test_check_order_returns_the_window() -> None:
    orders = ("stored", "shuffled", "window:12", "shards:12")
    assert [check_order(order) for order in orders] == [0, -1, 12, 0]
    assert [shard_buffer(order) for order in orders] == [0, 0, 0, 12]


def test_a_rank_outside_its_world_is_refused() -> None:
    with pytest.raises(SpecError, match="rank 2 is not within a world of 2"):
        sample_order(10, "stored", seed=0, batch=2, rank=2, world_size=2)
