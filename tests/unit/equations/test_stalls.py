"""The equations against numbers published or worked out by hand, stalls with exact equality."""

from __future__ import annotations

import collections
import dataclasses
import math
import random
from collections.abc import Sequence

import pytest

from iobench.equations import stalls
from iobench.equations.stalls import HANDOVER_S, Window


def test_weak_scaling_reproduces_a_published_speedup() -> None:
    # Mahon et al. 2020: 10.11 on 12 workers, 84.25 %
    speedup, efficiency = stalls.weak_scaling(10.11, 12.0, 12)
    assert speedup == pytest.approx(10.11)
    assert efficiency == pytest.approx(0.8425)


def test_cache_needed_makes_fetch_exactly_fast_enough() -> None:
    x = stalls.cache_needed(4000.0, 200.0, 900.0, 328.0)
    assert 1 / (x / 4000.0 + (1 - x) / 200.0) == pytest.approx(328.0)  # cached and stored in turn
    assert stalls.cache_needed(4000.0, 500.0, 900.0, 328.0) == 0.0
    assert stalls.cache_needed(300.0, 200.0, 900.0, 328.0) == 1.0
    assert stalls.cache_needed(200.0, 200.0, 900.0, 328.0) == 1.0


def test_small_equations() -> None:
    assert stalls.cores_needed(1786.0, 420.0) == 5
    assert stalls.au(20, 0.25, 5.0) == 1.0


def test_delay_is_divided_by_workers_and_may_be_masked() -> None:
    step = 0.195 / 64
    masked = stalls.delay_change_s(0.002, serial=0.003, workers=2, step=step)
    assert masked == 0.0
    bound = stalls.delay_change_s(0.010, serial=0.003, workers=2, step=step)
    assert bound == (0.003 + 0.010) / 2 - step
    assert stalls.delay_change_s(0.010, serial=0.010, workers=2, step=step) == pytest.approx(0.005)


def _trial(block: int, *, wait: float, compute: float, steps: int = 16) -> Window:
    wall = steps * (wait + compute)
    return Window(block, steps, steps * 64, wall, steps * wait, steps * compute, wait)


COMPUTE = [_trial(b, wait=0.0, compute=0.25) for b in (1, 2, 3)]
WARM = [_trial(b, wait=0.0625, compute=0.3125) for b in (1, 2, 3)]
COLD = [_trial(b, wait=0.5, compute=0.3125) for b in (1, 2, 3)]


def test_stalls_of_a_fake_clock_are_exact() -> None:
    fetch = stalls.fetch_stall(COLD, WARM)
    assert fetch.interval.value == 0.4375 / 64
    assert fetch.paired
    assert fetch.bound_s == (0.5 - 0.0625) / (16 * 64) + HANDOVER_S / 64
    assert fetch.interval.low == fetch.interval.value - fetch.bound_s
    prep, wait, contention = stalls.prep_stall(WARM, COMPUTE)
    assert prep.interval.value == 0.125 / 64
    assert (wait.value, contention.value) == (0.0625 / 64, 0.0625 / 64)
    assert wait.value + contention.value == prep.interval.value
    assert prep.bound_s == 0.0625 / (16 * 64) + HANDOVER_S / 64


@pytest.mark.parametrize(
    ("seen", "allowed"), [(0.0, HANDOVER_S), (0.001, HANDOVER_S), (0.005, 0.005), (0.1, 0.0625)]
)
def test_the_bound_is_the_hand_over_that_was_seen_and_at_most_the_waits(
    seen: float, allowed: float
) -> None:
    warm = [dataclasses.replace(t, handover_s=seen) for t in WARM]
    assert stalls.handover_bound_s(warm) == allowed / 64


def test_waited_account_agrees_when_steps_cost_the_same() -> None:
    assert stalls.waited_fetch_s(COLD, WARM).value == 0.4375 / 64


def test_a_negative_stall_is_not_clipped() -> None:
    assert stalls.fetch_stall(WARM, COLD).interval.value == -0.4375 / 64


def test_pairing_by_block_removes_what_a_block_shares() -> None:
    drift = {1: 0.0, 2: 0.5, 3: 1.0}
    cold = [_trial(b, wait=0.25 + d, compute=0.25) for b, d in drift.items()]
    warm = [_trial(b, wait=d, compute=0.25) for b, d in drift.items()]
    paired = stalls.fetch_stall(cold, warm)
    assert paired.interval.high - paired.interval.low == pytest.approx(2 * paired.bound_s)
    unpaired = stalls.fetch_stall(cold[:2], warm)
    assert not unpaired.paired
    assert unpaired.interval.high - unpaired.interval.low > 10 * paired.bound_s


def test_one_repeat_gives_a_point_without_limits() -> None:
    found = stalls.fetch_stall(COLD[:1], WARM[:1]).interval
    assert (found.value, found.low, found.high) == (0.4375 / 64, -math.inf, math.inf)


def test_no_trial_is_refused() -> None:
    with pytest.raises(ValueError, match="no trial"):
        stalls.fetch_stall([], WARM)


def _loader_bound(finish: Sequence[float], step: float) -> list[float]:
    """Return step ends of a loop whose batches are ready at ``finish``."""
    done, now = [], 0.0
    for ready in finish:
        now = max(now, ready) + step
        done.append(now)
    return done


def test_edges_find_the_phase_that_moved() -> None:
    # two workers, 2 s a batch each: at first both come at once, then one second apart
    early = [t for k in range(1, 3) for t in (2.0 * k, 2.0 * k)]
    late = [t for k in range(3, 9) for t in (2.0 * k - 1.0, 2.0 * k)]
    done = _loader_bound(early + late, 0.5)
    wall = done[-1] - done[3]
    assert 12 * 1.0 - wall == 0.5  # the window misses half a second of the loader's pace
    assert stalls.edge_shift_s(done, warmup=4, workers=2) >= 0.5


def test_edges_of_a_steady_pace_move_nothing() -> None:
    bursts = _loader_bound([2.0 * k for k in range(1, 9) for _ in (0, 1)], 0.5)
    assert stalls.edge_shift_s(bursts, warmup=4, workers=2) == 0.0
    trainer_bound = [0.25 * i for i in range(1, 21)]
    assert stalls.edge_shift_s(trainer_bound, warmup=4, workers=4) == 0.0
    assert stalls.edge_shift_s([1.0, 2.0, 9.0], warmup=0, workers=2) == 0.0


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("step", [0.1, 0.3, 0.5])
def test_edges_cover_the_error_while_steps_are_short(workers: int, step: float) -> None:
    bursts = [float(workers * k) for k in (1, 2) for _ in range(workers)]
    spread = [2.0 * workers + i for i in range(1, 6 * workers + 1)]
    finish = bursts + spread
    done = _loader_bound(finish, step)
    warmup = 2 * workers
    error = (done[-1] - done[warmup - 1]) - (finish[-1] - finish[warmup - 1])
    assert error < 0
    assert stalls.edge_shift_s(done, warmup=warmup, workers=workers) >= -error - 1e-9


@pytest.mark.parametrize(
    ("cached", "hits"),
    [(0.0, 0.0), (0.25, 0.034), (0.35, 0.070), (0.5, 0.153), (0.65, 0.283), (0.9, 0.670), (1, 1)],
)
def test_lru_under_reshuffling(cached: float, hits: float) -> None:
    assert stalls.lru_hit_ratio(cached) == pytest.approx(hits, abs=5e-4)


def test_lru_under_reshuffling_is_that_of_a_simulated_cache() -> None:
    draw, count, held = random.Random(1), 2000, 1200
    order = list(range(count))
    cache: collections.OrderedDict[int, None] = collections.OrderedDict()
    hits = 0
    for epoch in range(6):
        draw.shuffle(order)
        for sample in order:
            if sample in cache:
                hits += epoch > 0
                cache.move_to_end(sample)
            else:
                cache[sample] = None
                if len(cache) > held:
                    cache.popitem(last=False)
    assert hits / (5 * count) == pytest.approx(stalls.lru_hit_ratio(held / count), abs=0.01)
