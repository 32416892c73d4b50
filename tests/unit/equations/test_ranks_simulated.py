"""The simulation equals the closed form where that holds, and shows what that cannot."""

from __future__ import annotations

import dataclasses

import pytest

from iobench.equations import ssgd
from iobench.equations.ranks_simulated import SimulatedJob, ends_s, step_s
from iobench.equations.ssgd import StepParts
from tests.capabilities import need

STEP = StepParts(io_s=0.0, forward_s=1.0, backward_s=(1.0, 1.0), update_s=0.5)
JOB = SimulatedJob(ranks=3, workers=2, prefetch=2, prepare_s=4.0, step=STEP, comm_s=(0.25, 2.0))


@pytest.fixture(autouse=True)
def library() -> None:
    need("simpy")


def test_the_slower_side_sets_the_pace() -> None:
    closed = StepParts(2.0, 1.0, (1.0, 1.0), 0.5)
    assert step_s(JOB) == pytest.approx(closed.seconds(JOB.comm_s)) == pytest.approx(5.5)
    slow = dataclasses.replace(JOB, prepare_s=16.0)
    assert step_s(slow) == pytest.approx(8.0)


def test_the_first_steps_by_hand() -> None:
    job = dataclasses.replace(JOB, ranks=1, workers=1, prefetch=1, comm_s=())
    # batches at 4, 8, 12: each is begun as the one before is taken; a step takes 3.5
    assert ends_s(job, 3) == [7.5, 11.5, 15.5]


def test_one_slow_rank_holds_all_up() -> None:
    slow = dataclasses.replace(JOB, slow=(1.0, 4.0))
    assert step_s(slow) == pytest.approx(8.0)


def test_one_storage_feeds_all_ranks() -> None:
    shared = dataclasses.replace(JOB, read_bytes=3.0, bytes_per_s=1.0, comm_s=())
    for ranks in (1, 2, 4):
        job = dataclasses.replace(shared, ranks=ranks)
        io_s = ssgd.shared_io_s(3.5, ranks, nbytes=3.0, bytes_per_s=1.0)
        assert step_s(job) == pytest.approx(max(3.5, io_s), rel=0.02)


def test_steps_that_vary_cost_what_their_means_do_not() -> None:
    vary = dataclasses.replace(JOB, ranks=16, spread=0.3)
    assert step_s(vary) > 1.3 * step_s(dataclasses.replace(vary, spread=0.0))
    assert step_s(vary, seed=1) == step_s(vary, seed=1) != step_s(vary, seed=2)
