"""What the order of delivery costs: by hand, step by step, and properties that always hold."""

from __future__ import annotations

import random

import pytest

from iobench.equations import delivery

FAST, SLOW, STEP = 4.0, 23.0, 5.0


def batches(make: list[float], step: list[float]) -> delivery.Batches:
    return delivery.Batches(make, [0.0] * len(make), step)


def in_order(make: list[float], step: list[float], workers: int, ahead: int) -> float:
    return delivery.in_order(batches(make, step), workers, ahead)


def as_made(make: list[float], step: list[float], workers: int, ahead: int) -> float:
    return delivery.as_made(batches(make, step), workers, ahead)


def test_equal_batches_lose_nothing() -> None:
    make, step = [4.0] * 12, [5.0] * 12
    assert in_order(make, step, 2, 2) == 4.0 + 12 * 5.0  # the first is waited for
    assert as_made(make, step, 2, 2) == 4.0 + 12 * 5.0


def test_one_slow_batch_costs_what_the_queue_does_not_hide() -> None:
    """It is asked for when the batch ``ahead`` before it is taken, ``ahead`` steps earlier."""
    make, step = [FAST] * 40, [STEP] * 40
    make[20] = SLOW
    plain = FAST + 40 * STEP
    assert in_order(make, step, 2, 2) == plain + SLOW - 2 * STEP
    assert in_order(make, step, 2, 4) == plain + SLOW - 4 * STEP
    assert as_made(make, step, 2, 2) == plain  # the other worker keeps up alone


def test_without_a_step_slow_batches_stop_the_other_workers() -> None:
    """Batch 0 takes 10: worker 1 makes batches 1 and 3 until 2, and is asked for no more."""
    make, step = [10.0, *[1.0] * 7], [0.0] * 8
    assert in_order(make, step, 2, 4) == 13.0  # 2, 4, 6 of worker 0 follow
    assert as_made(make, step, 2, 4) == 11.0  # 5 and 6 by worker 1; 2 by worker 0


def test_held_is_the_wait_while_a_later_batch_was_there() -> None:
    request, ready, made = [0.0, 3.0, 14.0], [2.0, 13.0, 14.0], [1.5, 12.5, 5.0]
    assert delivery.held_s(request, ready, made) == 13.0 - 5.0
    assert delivery.held_s(request[:1], ready[:1], made[:1]) == 0.0


def test_handed_is_the_wait_for_a_batch_that_was_there_when_the_last_one_was_taken() -> None:
    request, ready, made = [0.0, 3.0, 8.0, 12.0], [2.0, 3.5, 11.0, 12.25], [1.5, 1.0, 10.0, 10.5]
    assert delivery.handed_s(request, ready, made) == [0.5, 0.25]
    assert delivery.handed_s(request, ready, ()) == []


@pytest.mark.parametrize("seed", range(20))
def test_no_loop_is_faster_than_its_work(seed: int) -> None:
    rng = random.Random(seed)
    workers, ahead = rng.choice([(1, 2), (2, 2), (2, 6), (4, 8)])
    make = [rng.expovariate(1.0) for _ in range(60)]
    step = [rng.random() for _ in range(60)]
    for loop in (in_order, as_made):
        wall = loop(make, step, workers, ahead)
        assert wall >= max(sum(step), sum(make) / workers)
        assert wall <= sum(make) + sum(step) + 1e-9
    if workers == 1:
        assert as_made(make, step, 1, ahead) == pytest.approx(in_order(make, step, 1, ahead))


@pytest.mark.parametrize("seed", range(5))
def test_a_loops_readings_give_back_what_its_batches_took(seed: int) -> None:
    """Readings of a loop in order, with hand-overs: replayed in order they are the same loop."""
    rng = random.Random(seed)
    workers, ahead, free = 2, 4, [0.0, 0.0]
    request, ready, done, made = [0.0], [], [], []
    for k in range(50):
        asked = ready[k - ahead] if k >= ahead else 0.0
        free[k % 2] = max(free[k % 2], asked) + rng.expovariate(1.0)
        made.append(free[k % 2])
        ready.append(max(request[-1], made[-1]) + 0.1 * rng.random())
        done.append(ready[-1] + rng.random())
        request.append(done[-1])
    found = delivery.batches(request[:-1], ready, done, made, workers=workers, ahead=ahead)
    assert delivery.in_order(found, workers, ahead) == pytest.approx(done[-1])
    assert delivery.as_made(found, workers, ahead) <= done[-1] + max(found.make)
