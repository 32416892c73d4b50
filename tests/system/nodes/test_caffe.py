"""Caffe's data parallel over two real hosts: one net, trained by MPI between them."""

from __future__ import annotations

import pytest

from tests.build import clusters
from tests.build.hosts import Hosts
from tests.capabilities import image_folder, need

pytestmark = pytest.mark.system


@pytest.mark.parametrize("runtime", ["bare", "apptainer"])
def test_caffe_trains_one_net_on_two_hosts(cluster: Hosts, runtime: str) -> None:
    """In containers the host's Open MPI starts ranks that the image's own links: one a rank.

    Two of a host exchange through its memory, with the numbers that their processes have there.
    """
    need("caffe")
    if runtime != "bare":
        need(runtime)
        need("caffe-image")
    words = clusters.command(
        cluster, ["cold"], "--hosts", "h1,h2", "--images", str(image_folder()), stage="train",
        launcher="mpirun", runtime=runtime, pipeline="native:lmdb", trainer="caffe",
        transform="crop224", order="stored", trainer_options={"net": "small"}, ranks_per_node=2,
    )  # fmt: skip
    done = clusters.run(cluster, words)
    assert done.returncode == 0, done.stderr
    clusters.check_all(cluster, ["cold"], each=2)
    (record,) = clusters.records(cluster)
    assert record["runtime"].get("scope", "") == ("" if runtime == "bare" else "rank")
    trainers = [rank["notes"]["trainer"] for rank in record["ranks"]]
    assert all(t["ranks"] == 4 and t["comm_s"] > 0 for t in trainers)
    assert len({t["weights_digest"] for t in trainers}) == 1
    assert len({t["losses_digest"] for t in trainers}) == 4, "each rank saw its own samples"
