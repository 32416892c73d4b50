"""What of a step's exchange was waiting for a peer, and what the exchange itself."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from iobench.backends.trainers._torch_ranks import StreamClock, free_since, spans, split
from tests.capabilities import need

LISTENS = """
import psutil
from iobench.backends.trainers._torch_ranks import TorchRanks
from iobench.core.peers import Peers
ranks = TorchRanks(Peers(0, 1, "127.0.0.1", lambda value: value))
found = psutil.Process().net_connections("tcp")
print(*{c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN})
"""

#: Rank 1 has its gradients 50 ms after rank 0; its clock is hours ahead.
LATE = """
import json, sys, time
from pathlib import Path
import torch
from iobench.backends.trainers._torch_ranks import TorchRanks
from iobench.core.peers import Peers
rank, met = int(sys.argv[1]), Path(sys.argv[2])
def agree(value):
    if not rank:
        met.with_suffix(".part").write_text(value)
        met.with_suffix(".part").rename(met)
    while not met.exists():
        time.sleep(0.01)
    return met.read_text()
def clock():
    return time.monotonic() + 9876.0 * rank
ranks = TorchRanks(Peers(rank, 2, "127.0.0.1", agree), clock=clock)
for _ in range(10):
    ranks.begin()
    time.sleep(0.05 * rank)
    ranks.reduce(torch.zeros(1000)).wait()
found = {**ranks.describe(), **ranks.exchanges(), "buckets": ranks.buckets()}
ranks.close()
print(json.dumps(found))
"""

#: One rank of a GPU: works some 20 ms a step, then exchanges 64 MB with itself.
ON_GPU = """
import json, time
import torch
from iobench.backends.trainers._torch_ranks import TorchRanks
from iobench.core.peers import Peers
ranks = TorchRanks(Peers(0, 1, "127.0.0.1", lambda value: value), device="cuda")
gradients, took = torch.ones(1 << 24, device="cuda"), []
for _ in range(10):
    ranks.begin()
    before = time.perf_counter()
    torch.cuda._sleep(30_000_000)
    ranks.reduce(gradients).wait()
    asked = time.perf_counter() - before
    torch.cuda.synchronize()
    took.append((asked, time.perf_counter() - before))
found = {**ranks.describe(), "buckets": ranks.buckets(), "took": sorted(took)[5]}
ranks.close()
print(json.dumps({**found, "sum": float(gradients.sum())}))
"""


@pytest.mark.parametrize(
    ("ready", "met", "done", "expected"),
    [
        ([0.0], [0.0], [4.0], (0.0, 4.0, 4.0)),
        ([0.0], [3.0], [4.0], (3.0, 1.0, 1.0)),  # the last rank came after 3 s
        ([0.0, 2.0], [0.0, 2.0], [1.0, 3.0], (0.0, 1.0, 2.0)),  # the first bucket is hidden
        ([0.0, 2.0], [0.0, 2.0], [5.0, 6.0], (0.0, 4.0, 6.0)),  # it is not through when the last is
        ([0.0, 1.0], [7.0, 9.0], [8.0, 10.0], (8.0, 1.0, 2.0)),  # exchanged while a peer computes
        ([0.0, 1.0], [0.5, 1.5], [4.0, 3.0], (0.5, 2.5, 3.5)),  # the small one overtakes
    ],
)
def test_a_wait_for_a_peer_is_no_exchange(
    ready: list[float], met: list[float], done: list[float], expected: tuple[float, float, float]
) -> None:
    assert split(ready, met, done) == expected


def test_both_waits_of_all_ranks_end_together() -> None:
    """One rank is 5 s late with each bucket: it waits for nobody, and both for one exchange."""
    met, done = [5.0, 6.0], [5.5, 7.0]
    early, late = split([0.0, 1.0], met, done), split([5.0, 6.0], met, done)
    assert early == (5.0, 1.0, 1.5)
    assert late == (0.0, 1.0, 1.5)


def test_an_exchange_that_ends_later_on_one_rank_is_no_wait_for_it() -> None:
    """Both work for 30 ms, but each exchange is over 20 ms later on rank 1."""
    ready = [[0.03, 0.142, 0.254], [0.03, 0.162, 0.274]]
    done = [[0.112, 0.224, 0.336], [0.132, 0.244, 0.356]]
    begins = [[(0.0, 0), (0.112, 1), (0.224, 2)], [(0.0, 0), (0.132, 1), (0.244, 2)]]
    free = [free_since(*each) for each in zip(begins, done, strict=True)]
    longest = np.max([np.array(own) - since for own, since in zip(ready, free, strict=True)], 0)
    for rank in (0, 1):
        met = (free[rank] + longest).tolist()
        for step in (1, 2):
            found = split(*([times[step]] for times in (ready[rank], met, done[rank])))
            assert found == pytest.approx((0.0, 0.082, 0.082))


def test_buckets_of_a_step_begin_at_the_end_of_the_one_before() -> None:
    begins, done = [(1.0, 0), (5.0, 2), (9.0, 4)], [4.0, 3.0, 6.0, 8.0, 10.0, 12.0]
    assert free_since(begins, done).tolist() == [1.0, 1.0, 4.0, 4.0, 8.0, 8.0]


def test_a_late_peer_is_waited_for_by_the_other_whatever_its_clock_shows(tmp_path: Path) -> None:
    need("torch")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with contextlib.ExitStack() as undo:
        started = []
        for rank in (0, 1):
            words = [sys.executable, "-c", LATE, str(rank), str(tmp_path / "met")]
            each = subprocess.Popen(words, stdout=subprocess.PIPE, env=env, text=True)
            undo.callback(each.wait)
            undo.callback(each.kill)  # one that waits for a rank that is gone
            started.append(each)
        early, late = (json.loads(each.communicate(timeout=120)[0]) for each in started)
    assert len(early["peers_s"]) == len(late["peers_s"]) == 10
    wait_s = median(early["peers_s"])
    assert 0.04 < wait_s < 5, "of hours between the clocks nothing is left"
    assert median(late["peers_s"]) < wait_s / 2
    assert max(median(each["exchange_s"]) for each in (early, late)) < wait_s
    assert early["buckets"][0]["comm_s"] < wait_s, "what rank 0 waits for is no exchange"


def test_buckets_are_exchanged_one_after_the_other() -> None:
    assert spans(1.0, [2.0, 3.0], [2.0, 3.0], [5.0, 6.0]) == [(1.0, 3.0), (2.0, 1.0)]


class Gpu:
    """A GPU whose stream is behind the host: its moments come when they are waited for."""

    def __init__(self) -> None:
        self.host_s, self.done_s, self.asked = 100.0, 0.0, 0

    @property
    def cuda(self) -> Gpu:
        return self

    def Event(self, enable_timing: bool) -> Event:
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.known = gpu, False

    def record(self) -> None:
        self.at = self.gpu.done_s

    def synchronize(self) -> None:
        self.known = True

    def elapsed_time(self, other: Event) -> float:
        assert other.known, "it may not have happened yet"
        return 1e3 * (other.at - self.at)


def test_moments_of_a_gpu_are_on_the_hosts_clock() -> None:
    """Each step begins idle; its buckets are ready when the GPU has them, not when asked for."""
    gpu, ready, done = Gpu(), [0.0, 0.0], [0.0, 0.0]
    stream = StreamClock(gpu, lambda: gpu.host_s)
    for step in (0, 1):
        gpu.host_s, gpu.done_s = 100.0 + step, 7.0 + 3 * step  # neither clock runs like the other
        assert stream.begin() == gpu.host_s
        gpu.done_s += 0.25
        stream.note(ready, step)
        gpu.done_s += 0.5
        stream.note(done, step)
    assert (ready[0], done[0]) == pytest.approx((100.25, 100.75))
    assert ready[1] == 0.0, "it has not been waited for"
    stream.read()
    stream.read()
    assert (ready[1], done[1]) == pytest.approx((101.25, 101.75))


def test_a_gpu_and_the_host_agree_on_how_long_a_step_was() -> None:
    """By real events and nccl: work, then exchange, is the step that the host has waited for."""
    need("cuda")
    done = _python(ON_GPU)
    assert not done.returncode, done.stderr
    found = json.loads(done.stdout)
    assert found["exchange"] == "nccl"
    assert found["comm_bytes"] == found["sum"] * 4 == 1 << 26
    bucket, (asked_s, step_s) = found["buckets"][0], found["took"]
    assert asked_s < bucket["ready_s"], "the host does not wait: its own clock is too early"
    assert bucket["ready_s"] + bucket["comm_s"] == pytest.approx(step_s, rel=0.1)
    assert bucket["comm_s"] < bucket["ready_s"]


def test_ranks_meet_at_the_address_of_the_trial_and_no_other() -> None:
    need("torch")
    done = _python(LISTENS)
    assert done.stdout.split() == ["127.0.0.1"], done.stderr


def _python(script: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    words = [sys.executable, "-c", script]
    return subprocess.run(words, capture_output=True, text=True, env=env, check=False)
