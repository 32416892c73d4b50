"""The exchange of gradients: arithmetic on a communicator of threads; real ranks in test_ranks."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any, List

import numpy as np
import pytest

from iobench.backends.caffe import gradients, library
from iobench.core.errors import BackendUnavailable, SpecError


class World:
    """What the exchange needs of mpi4py, among threads of this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.given: List[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=20)

    def all(self, rank: int, value: Any) -> List[Any]:
        self.given[rank] = value
        self.barrier.wait()
        seen = list(self.given)
        self.barrier.wait()
        return seen


class Comm:
    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank = world, rank

    def Get_size(self) -> int:
        return self.world.size

    def allgather(self, value: Any) -> List[Any]:
        return self.world.all(self.rank, value)

    def Bcast(self, array: np.ndarray, root: int) -> None:
        array[...] = self.world.all(self.rank, array.copy())[root]

    def Allreduce(self, here: Any, array: np.ndarray, op: str) -> None:
        assert here == "in place"
        array[...] = {"sum": np.sum, "max": np.max}[op](self.world.all(self.rank, array.copy()), 0)


@pytest.fixture
def mpi(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    module = ModuleType("mpi4py")
    known = SimpleNamespace(IN_PLACE="in place", SUM="sum", MAX="max", COMM_WORLD=Comm(World(1), 0))
    module.MPI = known  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mpi4py", module)
    return known


def blob(values: Any) -> SimpleNamespace:
    data = np.array(values, np.float32)
    return SimpleNamespace(data=data, diff=np.zeros_like(data))


def on_every_rank(size: int, work: Any) -> List[Any]:
    world, results = World(size), [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank, Comm(world, rank))
        except Exception as error:  # noqa: BLE001
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_ranks_begin_alike_and_step_by_the_mean(mpi: SimpleNamespace) -> None:
    def work(rank: int, comm: Comm) -> Any:
        params = [blob([[1.0 + rank, 2.0], [3.0, 4.0]]), blob([5.0 * (rank + 1)])]
        exchange = gradients.Gradients(params, comm)
        exchange.broadcast()
        for b in params:
            b.diff[...] = b.data * (rank + 1)  # 1x, 2x and 3x: the mean is 2x
        exchange()
        return params, dict(exchange.describe()), len(exchange.seconds)

    found = on_every_rank(3, work)
    assert len({facts["weights_digest"] for _, facts, _ in found}) == 1
    for params, facts, count in found:
        assert params[0].data.tolist() == [[1.0, 2.0], [3.0, 4.0]]
        assert params[1].data.tolist() == [5.0]
        assert np.allclose(params[0].diff, [[2.0, 4.0], [6.0, 8.0]])
        assert np.allclose(params[1].diff, [10.0])
        assert (facts["ranks"], facts["comm_bytes"], count) == (3, 5 * 4, 1)
        assert facts["comm_s"] == facts["comm_first_s"] > 0


def test_weights_that_part_have_another_digest(mpi: SimpleNamespace) -> None:
    def work(rank: int, comm: Comm) -> Any:
        param = blob([1.0, 2.0])
        exchange = gradients.Gradients([param], comm)
        exchange.broadcast()
        param.data[1] += rank * 2.0**-22
        return exchange.describe()["weights_digest"]

    assert len(set(on_every_rank(2, work))) == 2


def test_the_exchange_is_timed_by_its_clock(mpi: SimpleNamespace) -> None:
    ticks = iter([0.0, 1.0, 1.25, 1.5, 2.0, 3.0, 3.125, 3.25, 3.5, 10.0, 10.5, 11.0, 12.5])
    exchange = gradients.Gradients([blob([1.0])], Comm(World(1), 0), clock=lambda: next(ticks))
    for _ in range(3):
        exchange()
    assert list(exchange.own) == [1.25, 1.625, 7.25], "from the end of one to the next gradients"
    assert exchange.exchanges() == {"peers_s": [0.0] * 3, "exchange_s": [1.0, 0.5, 2.5]}
    assert exchange.describe()["peers_s"] == 0.0
    assert exchange.describe()["comm_s"] == 1.0
    assert exchange.describe()["comm_first_s"] == 1.0


@pytest.mark.parametrize(
    ("ticks", "expected"),
    [
        # The batch of rank 1 comes 2 s late: rank 0 waits for it, and both exchange for 0.5 s.
        (([0.0, 1.0, 1.0, 3.5, 3.5], [9.0, 12.0, 12.0, 12.5, 12.5]), ([2.0, 0.5], [0.0, 0.5])),
        # Both work for 1 s, and the exchange ends 2 s later on rank 1, which is no wait for it.
        (([0.0, 1.0, 1.0, 1.5, 1.5], [9.0, 10.0, 10.0, 12.5, 12.5]), ([0.0, 0.5], [0.0, 2.5])),
    ],
)
def test_a_wait_for_a_peer_is_no_exchange(mpi: SimpleNamespace, ticks: Any, expected: Any) -> None:
    def work(rank: int, comm: Comm) -> Any:
        times = iter(ticks[rank])
        exchange = gradients.Gradients([blob([1.0])], comm, clock=lambda: next(times))
        exchange()
        found = exchange.exchanges()
        return [*found["peers_s"], *found["exchange_s"]]

    assert on_every_rank(2, work) == list(expected)


def test_nets_that_differ_are_refused_by_every_rank(mpi: SimpleNamespace) -> None:
    def work(rank: int, comm: Comm) -> Any:
        return gradients.Gradients([blob([1.0] * (rank + 1))], comm)

    errors = on_every_rank(2, work)
    assert all(isinstance(e, SpecError) for e in errors)
    assert "(1, 1), (1, 2)" in str(errors[0])


def test_one_rank_exchanges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)  # importing it would raise
    param = blob([1.0])
    param.diff[...] = 3.0
    exchange = gradients.mean([param], world_size=1)
    exchange.broadcast()
    exchange()
    assert exchange.describe() == {}
    assert param.diff.tolist() == [3.0]


def test_several_ranks_need_mpi4py_of_their_own_mpi(
    monkeypatch: pytest.MonkeyPatch, mpi: SimpleNamespace
) -> None:
    with pytest.raises(BackendUnavailable, match="2 ranks were started and mpi4py sees 1"):
        gradients.mean([blob([1.0])], 2)
    mpi.COMM_WORLD = SimpleNamespace(Get_size=lambda: 2, allgather=lambda v: [v, v])
    assert isinstance(gradients.mean([blob([1.0])], 2), gradients.Gradients)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(BackendUnavailable, match="need mpi4py"):
        gradients.mean([blob([1.0])], 2)


def test_only_several_solvers_need_a_caffe_that_knows_of_them() -> None:
    library.share(SimpleNamespace(), 0, 1)
    with pytest.raises(BackendUnavailable, match="no set_multiprocess"):
        library.share(SimpleNamespace(), 0, 2)
    told: List[Any] = []
    names = ("set_multiprocess", "set_solver_count", "set_solver_rank")
    caffe = SimpleNamespace(**{n: lambda v, n=n: told.append((n, v)) for n in names})
    library.share(caffe, 1, 4)
    assert told == [("set_multiprocess", True), ("set_solver_count", 4), ("set_solver_rank", 1)]
