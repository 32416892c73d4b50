"""Caffe's data parallel over two real hosts: one net, trained by MPI between them."""

from __future__ import annotations

import pytest

from tests.build import clusters
from tests.build.hosts import Hosts
from tests.capabilities import need

pytestmark = pytest.mark.system


def test_caffe_trains_one_net_on_two_hosts(cluster: Hosts) -> None:
    need("caffe")
    words = clusters.command(
        cluster, ["cold"], "--hosts", "h1,h2", stage="train", launcher="mpirun",
        pipeline="native:lmdb", trainer="caffe", transform="crop224", order="stored",
        trainer_options={"net": "small"},
    )  # fmt: skip
    done = clusters.run(cluster, words)
    assert done.returncode == 0, done.stderr
    clusters.check_all(cluster, ["cold"])
    (record,) = clusters.records(cluster)
    trainers = [rank["notes"]["trainer"] for rank in record["ranks"]]
    assert all(t["ranks"] == 2 and t["comm_s"] > 0 for t in trainers)
    assert len({t["weights_digest"] for t in trainers}) == 1
    assert len({t["losses_digest"] for t in trainers}) == 2, "each rank saw its own samples"
