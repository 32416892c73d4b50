"""The measured loop under a fake clock: every figure exact."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from iobench.analysis.windows import epoch, window
from iobench.core.cases import Batch
from iobench.core.clock import clock, delay
from iobench.worker import sample_times
from iobench.worker.loop import measure, warmup_steps, worth_going_on


class World:
    """A clock that only moves when somebody works; loader and trainer say how long they take."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now


class Trainer:
    feeds_itself = False
    device = "cpu"

    def __init__(self, world: World, step_s: float) -> None:
        self._world, self._step_s = world, step_s

    def step(self, batch: Batch) -> None:
        self._world.now += self._step_s

    def sync(self) -> None:
        pass


def batches(world: World, waits: list[float], size: int = 4) -> Iterator[Batch]:
    for i, wait in enumerate(waits):
        world.now += wait
        ids = np.arange(size, dtype=np.int64) + i * size
        yield Batch(data=None, labels=ids, ids=ids, nbytes=size * 10)


def test_steps_are_exact() -> None:
    world = World()
    found = measure(
        batches(world, [2.0, 0.5, 0.25]), Trainer(world, 1.0), warmup=1, clock=world.clock
    )
    assert found.steps.request_s == [0.0, 3.0, 4.5]
    assert found.steps.ready_s == [2.0, 3.5, 4.75]
    assert found.steps.done_s == [3.0, 4.5, 5.75]
    assert found.steps.samples == [4, 4, 4]
    assert found.steps.bytes == [40, 40, 40]
    assert np.concatenate(found.ids).tolist() == list(range(12))


def test_a_batch_that_has_its_times_was_made_on_the_loops_clock() -> None:
    world = World()
    made = [
        batch._replace(marks=np.array([101.0, 101.5, 102.0 + i, 101.25, 101.5, 101.75]))
        for i, batch in enumerate(batches(World(), [0.0, 0.0], size=2))
    ]
    found = measure(iter(made), Trainer(world, 1.0), warmup=0, clock=world.clock)
    assert found.steps.begun_s == [1.0, 1.0]
    assert found.steps.made_s == [2.0, 3.0]
    assert sample_times.recent(found) == {
        "id": [0, 1, 2, 3],
        "read_s": [0.5, 0.25, 0.5, 0.25],
        "decode_s": [0.5, 0.25, 1.5, 0.25],
    }


def test_a_record_holds_the_last_samples_after_the_warm_up() -> None:
    world = World()
    made = [
        batch._replace(marks=np.array([0.0, 1.0 + i] * 4))
        for i, batch in enumerate(batches(world, [0.0] * 1000))
    ]
    found = sample_times.recent(
        measure(iter(made), Trainer(world, 1.0), warmup=10, clock=world.clock)
    )
    assert found["id"] == list(range(4000 - sample_times.RING, 4000))
    assert found["read_s"][-1] == 1000.0
    few = measure(iter(made[:20]), Trainer(world, 1.0), warmup=10, clock=world.clock)
    assert sample_times.recent(few)["id"] == list(range(40, 80))


def test_window_has_one_numerator_and_denominator() -> None:
    world = World()
    waits = [2.0, 0.5, 0.25, 0.25]
    found = measure(batches(world, waits), Trainer(world, 1.0), warmup=1, clock=world.clock)
    w = window(found.steps)
    assert (w.steps, w.samples) == (3, 12)
    assert w.wall_s == 0.5 + 0.25 + 0.25 + 3.0
    assert w.wait_s == 1.0
    assert w.compute_s == 3.0
    assert w.wall_s == w.wait_s + w.compute_s
    assert w.wall_s / w.samples == 4.0 / 12


@pytest.mark.parametrize("per_file", [1, 4, 5, 20])
def test_without_a_warmup_all_the_work_counts(per_file: int) -> None:
    """A loader that loads files of several batches, in the loop: no file is lost at the edges."""
    world = World()
    waits = [8.0 if i % per_file == 0 else 0.25 for i in range(20)]
    found = measure(batches(world, waits), Trainer(world, 1.0), warmup=0, clock=world.clock)
    for w in (window(found.steps), epoch(found.steps)):
        assert (w.steps, w.samples, w.wall_s) == (20, 80, sum(waits) + 20.0)
        assert (w.wait_s, w.compute_s) == (sum(waits), 20.0)


def test_window_needs_a_step_after_the_warmup() -> None:
    world = World()
    found = measure(batches(world, [1.0]), Trainer(world, 1.0), warmup=1, clock=world.clock)
    with pytest.raises(ValueError, match="all of them warm-up"):
        window(found.steps)


@pytest.mark.parametrize(
    ("queue", "workers", "steps", "expected"),
    [(4, 2, 20, 4), (4, 2, 21, 5), (4, 2, 40, 4), (0, 0, 20, 1), (6, 3, 40, 7), (8, 4, 20, 4)],
)
def test_warmup_leaves_whole_rounds(queue: int, workers: int, steps: int, expected: int) -> None:
    k = warmup_steps(queue_batches=queue, workers=workers, steps=steps)
    assert k == expected
    assert (steps - k) % max(workers, 1) == 0


def pipeline(production: float, step: float, workers: int, queue: int, n: int) -> list[float]:
    """Exact waits of a round-robin loader of ``workers`` processes with a bounded queue."""
    finish = [0.0] * workers
    done: list[float] = []
    waits = []
    now = 0.0
    for i in range(n):
        start = max(finish[i % workers], done[i - queue] if i >= queue else 0.0)
        finish[i % workers] = start + production
        waits.append(max(0.0, finish[i % workers] - now))
        now += waits[-1] + step
        done.append(now - step)
    return waits


@pytest.mark.parametrize(
    ("production", "step", "workers"),
    [(8.0, 1.0, 2), (8.0, 4.0, 2), (2.0, 4.0, 2), (0.0, 1.0, 1), (9.0, 0.0, 3), (8.0, 0.0, 4)],
)
def test_the_window_is_steady_state_in_both_regimes(
    production: float, step: float, workers: int
) -> None:
    """T = max(production / W, step) exactly: neither the start nor the queue leaks in."""
    n = 40 if workers != 3 else 42
    world = World()
    waits = pipeline(production, step, workers, 2 * workers, n)
    warmup = warmup_steps(queue_batches=2 * workers, workers=workers, steps=n)
    found = measure(batches(world, waits), Trainer(world, step), warmup=warmup, clock=world.clock)
    w = window(found.steps)
    assert w.wall_s / w.steps == max(production / workers, step)


@pytest.mark.parametrize(
    ("production", "step", "workers"),
    [(8.0, 1.0, 2), (8.0, 4.0, 2), (6.0, 4.0, 2), (2.0, 4.0, 2), (9.0, 0.0, 3), (8.0, 0.0, 1)],
)
def test_the_epoch_is_the_slower_side_from_an_empty_queue(
    production: float, step: float, workers: int
) -> None:
    """T = max(production / W, step), exactly."""
    n = 36
    world = World()
    waits = pipeline(production, step, workers, 2 * workers, n)
    found = measure(batches(world, waits), Trainer(world, step), warmup=4, clock=world.clock)
    e = epoch(found.steps)
    expected = max(production / workers, step)
    assert e.wall_s == n * expected
    assert e.samples == 4 * n
    assert e.wall_s == e.wait_s + e.compute_s


def test_the_epoch_counts_what_comes_in_early() -> None:
    """A shard read ahead during the first batch counts in the epoch and is unseen by the window.

    It counts as on a larger set, where reading ahead and training overlap: the slower side.
    """
    world = World()
    waits = [10.0] + [0.0] * 19
    found = measure(batches(world, waits), Trainer(world, 0.1), warmup=4, clock=world.clock)
    assert window(found.steps).wait_s == 0.0
    assert epoch(found.steps).wall_s == 10.0


def test_an_epoch_ends_with_a_short_wait_if_it_is_a_real_one() -> None:
    """Workers out of step: the last batches are waited for below half the mean, three steps long.

    A hand-over (here 0.02 of a step) is no wait: that batch was there with the one before.
    """
    for last, arrived in ((0.3, 6 * 1.5 + 2 * 0.3 + 7 * 0.1), (0.002, 6 * 1.5 + 5 * 0.1)):
        world = World()
        waits = [1.5, 1.5, 1.5, 1.5, 1.5, 1.5, last, last]
        found = measure(batches(world, waits), Trainer(world, 0.1), warmup=2, clock=world.clock)
        assert epoch(found.steps).wall_s == pytest.approx(arrived)


def test_a_delay_is_never_short() -> None:
    for seconds in (0.0, 1e-4, 3e-3):
        start = clock()
        delay(seconds)
        assert clock() - start >= seconds


def test_a_loop_below_the_least_rate_ends_after_a_quarter_of_what_counts() -> None:
    world, steps, warmup = World(), 40, 4

    def ran(least: float) -> int:
        trainer = Trainer(world, 1.0)
        count = 0
        made = worth_going_on(
            batches(world, [0.0] * steps), least=least, warmup=warmup, steps=steps,
            clock=world.clock,
        )  # fmt: skip
        for batch in made:
            trainer.step(batch)
            count += 1
        return count

    assert ran(least=4.1) == warmup + (steps - warmup) // 4 + 1
    assert ran(least=3.9) == steps
