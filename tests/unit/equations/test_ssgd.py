"""Synchronous SGD: the worked vector of wait-free backpropagation, fits, and steps by hand."""

from __future__ import annotations

import pytest

from iobench.equations import ssgd
from iobench.equations.ssgd import AllReduce, StepParts

#: Layers 4, 3, 2, 1: seconds of the backward pass, and of every exchange.
BACKWARD, COMM = (3.0, 3.5, 5.0, 6.0), (4.0, 4.0, 4.0, 4.0)


def test_the_worked_vector_of_wait_free_backpropagation() -> None:
    found = ssgd.exchanges_s(BACKWARD, COMM)
    assert [begin for begin, _ in found] == [3.0, 7.0, 11.5, 17.5]
    assert found[-1][1] == 21.5
    assert ssgd.exposed_s(BACKWARD, COMM) == 4.0


@pytest.mark.parametrize(
    ("comm", "exposed"),
    [((0.0,) * 4, 0.0), ((1.0,) * 4, 1.0), ((100.0, 0.0, 0.0, 0.0), 85.5), ((9.0,) * 4, 21.5)],
)
def test_what_is_not_hidden(comm: tuple[float, ...], exposed: float) -> None:
    assert ssgd.exposed_s(BACKWARD, comm) == exposed


def test_steps_by_hand() -> None:
    step = StepParts(io_s=20.0, h2d_s=1.0, forward_s=2.0, backward_s=BACKWARD, update_s=0.5)
    assert step.compute_s == 20.0
    assert step.seconds() == 21.0, "the input is the slower side"
    assert step.seconds(COMM) == 24.0
    assert step.seconds(COMM, wait_free=False) == 36.0
    alone = StepParts(io_s=20.0, h2d_s=1.0, forward_s=2.0, backward_s=BACKWARD, ahead=False)
    assert alone.seconds() == 21.0 + 19.5
    assert alone.seconds(COMM, wait_free=False) == 21.0 + 19.5 + 16.0


def test_the_exchange_is_fitted() -> None:
    found = ssgd.fitted([1e6, 2e6, 4e6, 8e6], [0.5 + 1e-6 * b for b in (1e6, 2e6, 4e6, 8e6)])
    assert found.latency_s == pytest.approx(0.5)
    assert found.byte_s == pytest.approx(1e-6)
    assert found.seconds(3e6) == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("sizes", "seconds", "byte_s"),
    [((1.0, 2.0), (3.0, 1.0), 1.0), ((1.0, 2.0), (1.0, 3.0), 1.4), ((5.0, 5.0), (10.0, 20.0), 3.0)],
)
def test_what_does_not_part_latency_from_bandwidth_is_all_bytes(
    sizes: tuple[float, ...], seconds: tuple[float, ...], byte_s: float
) -> None:
    """Else a latency that is none would grow with the ranks of a ring."""
    assert ssgd.fitted(sizes, seconds) == AllReduce(0.0, pytest.approx(byte_s))


def test_a_ring_of_more_ranks() -> None:
    two = AllReduce(0.1, 1e-9)
    assert ssgd.ring(two, 2, 2) == two
    assert ssgd.ring(two, 2, 1) == AllReduce(0.0, 0.0)
    found = ssgd.ring(two, 2, 5)
    assert found.latency_s == pytest.approx(0.4)
    assert found.byte_s == pytest.approx(1.6e-9)
    assert ssgd.ring(found, 5, 2).byte_s == pytest.approx(1e-9)


def test_storage_that_all_ranks_share() -> None:
    shared = {"nbytes": 1e6, "bytes_per_s": 4e6}
    assert [ssgd.shared_io_s(1.0, n, **shared) for n in (1, 4, 8)] == [1.0, 1.0, 2.0]
    assert ssgd.shared_io_s(1.0, 1000, nbytes=1e6, bytes_per_s=None) == 1.0
