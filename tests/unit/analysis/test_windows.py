"""Readings on a clock that stands still while an arm is stopped: exact, and no step left out."""

from __future__ import annotations

import random
from typing import List, Sequence, Tuple

import pytest

from iobench.analysis.windows import epoch, thawed, thawed_parts, window
from iobench.core.records import Slices, Steps


def loop(work_s: Sequence[float], slices: Sequence[Tuple[float, float]]) -> Steps:
    """Return the readings of a loop of such steps that runs in these slices alone."""
    left = [list(s) for s in slices]
    done: List[float] = []
    for seconds in work_s:
        while seconds > left[0][1] - left[0][0]:
            seconds -= left[0][1] - left[0][0]
            left.pop(0)
        left[0][0] += seconds
        done.append(left[0][0])
    done = [t - slices[0][0] for t in done]
    asked = [0.0, *done[:-1]]
    return Steps(asked, done, done, [8] * len(done), [1] * len(done), warmup=2)


def turns(count: int, slice_s: float, draw: random.Random) -> List[List[Tuple[float, float]]]:
    """Return the slices of two arms, in rounds of a drawn order, with gaps between them."""
    found: List[List[Tuple[float, float]]] = [[], []]
    now = 100.0
    for _ in range(count):
        for arm in draw.sample([0, 1], 2):
            ran = slice_s * draw.uniform(0.98, 1.05)
            found[arm].append((now, now + ran))
            now += ran + draw.uniform(0.0, 0.003)
    return found


@pytest.mark.parametrize("slice_s", [0.05, 0.2, 1.0])
def test_even_and_bursty_steps_of_equal_work_take_equally_long(slice_s: float) -> None:
    """Steps of 70/70 ms and of 0/140 ms: long ones are interrupted more often than short ones."""
    slices = turns(2000, slice_s, random.Random(f"{slice_s}"))
    steps = 100
    even, bursts = [0.07] * steps, [0.0, 0.14] * (steps // 2)
    seconds = []
    for work_s, mine in zip((even, bursts), slices, strict=True):
        raw = loop(work_s, mine)
        proof = Slices(mine, [0.0], [0.0])
        found = thawed(raw, mine[0][0], proof)
        assert found.done_s[-1] == pytest.approx(7.0, abs=1e-9)
        assert window(found).samples == 8 * (steps - 2)
        seconds.append(window(found).seconds_per_sample)
        assert epoch(found).wall_s <= 7.0 + 1e-9
        assert window(raw).wall_s > 1.5 * window(found).wall_s
    assert seconds[0] / seconds[1] == pytest.approx(1.0, abs=1e-9)


def test_a_reading_between_slices_is_at_the_end_of_the_one_before() -> None:
    """A signal takes a moment until the process has stopped."""
    raw = Steps([0.0, 1.1], [0.5, 3.5], [1.1, 4.0], [1, 1], [1, 1])
    found = thawed(raw, 10.0, Slices([(9.0, 11.0), (13.0, 15.0)], [0.1], [0.0]))
    assert found.done_s == [1.0, 2.0]
    assert found.ready_s == [0.5, 1.5]
    assert found.request_s == [0.0, 1.0]


def test_a_part_of_a_sample_lasts_as_long_as_it_ran() -> None:
    """Of two samples: read in one slice, decoded over a stop, transformed after it."""
    probe = {
        "read_s": [0.25, 0.25], "read_at": [0.0, 0.25],
        "decode_s": [3.0, 0.25], "decode_at": [0.5, 4.0],
        "transform_s": [0.5, 0.25], "transform_at": [3.5, 4.25],
    }  # fmt: skip
    found = thawed_parts(probe, 10.0, Slices([(9.0, 11.0), (13.0, 15.0)], [0.1], [0.0]))
    assert found == {"read_s": [0.25, 0.25], "decode_s": [1.0, 0.25], "transform_s": [0.5, 0.25]}


def test_ranks_in_step_train_from_the_last_ranks_first_batch_on() -> None:
    """One rank's batches come every 2 s, its peer's at once: both step every 2 s, the epoch is 8 s
    of reading, whichever of them it is asked of.
    """
    ready = [2.0, 4.0, 6.0, 8.0]
    done = [t + 0.5 for t in ready]
    slow = Steps([0.0, *done[:-1]], ready, done, [8] * 4, [1] * 4, warmup=1)
    quick = Steps([0.0, *done[:-1]], [0.1, *done[:-1]], done, [8] * 4, [1] * 4, warmup=1)
    assert epoch(slow).wall_s == 8.0
    assert epoch(quick).wall_s == 8.4, "it has waited in its first step for the other's batch"
    assert max(epoch(each, first_s=2.0).wall_s for each in (slow, quick)) == 8.0


def test_workers_that_end_apart_have_done_their_work_at_the_mean_of_their_ends() -> None:
    """Batches 0, 2, 4 are one worker's, 1, 3, 5 the other's, who is a batch behind at the end."""
    made = [2.0, 2.0, 4.0, 5.0, 6.0, 8.0]
    ready = [2.0, 2.0, 4.0, 5.0, 6.0, 8.0]
    steps = Steps([0.0, *ready[:-1]], ready, ready, [8] * 6, [1] * 6, warmup=2, made_s=made)
    assert epoch(steps).wall_s == 8.0
    assert epoch(steps, workers=2).wall_s == 7.0
    assert epoch(steps, workers=1).wall_s == 8.0


def test_a_worker_that_ends_long_after_the_other_changes_nothing_of_that() -> None:
    """It ends 3 s later; the first batch took one."""
    made = [1.0, 1.0, 2.0, 2.5, 3.0, 4.0, 4.0, 5.5, 5.0, 8.0]
    ready = [1.0, 1.0, 2.0, 2.5, 3.0, 4.0, 4.0, 5.5, 5.5, 8.0]
    steps = Steps([0.0, *ready[:-1]], ready, ready, [8] * 10, [1] * 10, warmup=2, made_s=made)
    assert epoch(steps).wall_s == 8.0
    assert epoch(steps, workers=2).wall_s == 6.5


def test_a_slow_consumer_s_time_does_not_end_with_the_workers() -> None:
    """Batches wait for it: its own steps are the loop's time.  It waited for the first one alone,
    long before the workers ended.
    """
    made, done = [1.0, 1.0, 2.0, 2.0, 5.0, 7.0], [3.0, 5.0, 7.0, 9.0, 11.0, 13.0]
    ready = [1.0, *done[:-1]]
    steps = Steps([0.0, *done[:-1]], ready, done, [8] * 6, [1] * 6, warmup=2, made_s=made)
    assert epoch(steps, workers=2).wall_s == epoch(steps).wall_s == 12.0


def test_when_a_batch_was_made_is_told_on_the_clock_that_stands_still() -> None:
    raw = Steps(
        [0.0, 1.1], [0.5, 3.5], [1.1, 4.0], [1, 1], [1, 1], begun_s=[0.0, 0.4], made_s=[0.4, 3.2]
    )
    found = thawed(raw, 10.0, Slices([(9.0, 11.0), (13.0, 15.0)], [0.1], [0.0]))
    assert found.begun_s == pytest.approx([0.0, 0.4])
    assert found.made_s == pytest.approx([0.4, 1.2])
