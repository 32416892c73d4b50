"""Three real hosts: what two cannot show of places, proofs and the first node's part in them."""

from __future__ import annotations

import shutil
from typing import Iterator

import pytest

from tests.build import clusters
from tests.build.hosts import Hosts
from tests.capabilities import need

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    for capability in ("hosts", "loop", "lmdb", "torch"):
        need(capability)
    folder = tmp_path_factory.mktemp("three")
    with clusters.with_data(folder, count=3) as found:
        yield found
    shutil.rmtree(folder)


@pytest.mark.parametrize(("launcher", "each"), [("mpirun", 2), ("torchrun", 1)])
def test_ranks_on_three_hosts(three: Hosts, launcher: str, each: int) -> None:
    """64 samples do not divide: whole batches of 4 on each rank are read, and no other sample."""
    words = clusters.command(
        three, ["cold"], "--hosts", "h1,h2,h3", launcher=launcher, nodes=3, ranks_per_node=each
    )
    done = clusters.run(three, words)
    assert done.returncode == 0, done.stderr
    clusters.check_all(three, ["cold"], each=each)
    left = clusters.SAMPLES % (4 * 3 * each)
    assert f"{left} of 64 samples are left out of an epoch" in done.stdout
