"""What of a step's exchange was waiting for a peer, and what the exchange itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from iobench.backends.trainers import torch as torch_trainer
from iobench.backends.trainers._torch_ranks import spans, split
from iobench.core.cases import Case
from iobench.core.errors import SpecError
from tests.capabilities import need

LISTENS = """
import psutil
from iobench.backends.trainers._torch_ranks import TorchRanks
from iobench.core.peers import Peers
ranks = TorchRanks(Peers(0, 1, "127.0.0.1", lambda value: value))
found = psutil.Process().net_connections("tcp")
print(*{c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN})
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


def test_buckets_are_exchanged_one_after_the_other() -> None:
    assert spans(1.0, [2.0, 3.0], [2.0, 3.0], [5.0, 6.0]) == [(1.0, 3.0), (2.0, 1.0)]


def test_several_ranks_on_gpus_are_refused() -> None:
    case = Case(trainer="torch", world_size=2, trainer_options={"device": "cuda"})
    with pytest.raises(SpecError, match="several ranks exchange gradients by gloo"):
        torch_trainer.BACKEND.judge(case)


def test_ranks_meet_at_the_address_of_the_trial_and_no_other() -> None:
    need("torch")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", LISTENS], capture_output=True, text=True, env=env, check=False
    )
    assert done.stdout.split() == ["127.0.0.1"], done.stderr
