"""Copies that are read first, written by a host that does not read them."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest

from iobench.core.records import BY_ANOTHER, FIRST_TOUCH
from iobench.data import make
from tests.build import clusters
from tests.build.disks import disk
from tests.build.hosts import Hosts, hosts
from tests.capabilities import need

pytestmark = pytest.mark.slow
SAMPLES = 64


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Three hosts that share one disk, and the data on it; they see the file that holds it."""
    for capability in ("hosts", "loop", "mpirun"):
        need(capability)
    top = tmp_path_factory.mktemp("first-touch")
    folder = top / "shared"
    with (
        tempfile.TemporaryDirectory(dir=Path(__file__).parent) as name,
        disk(Path(name, "image"), folder, 256 << 20),
    ):
        make.make("imagenet-like", folder / "set", samples=SAMPLES, seed=1)
        with hosts(folder, 3) as found:
            yield found
    shutil.rmtree(top)


def measured(cluster: Hosts, names: str) -> List[Dict[str, Any]]:
    spec = {
        "name": "first", "budget": "2m", "limit_s": 120, "first_touch": True,
        "case": {
            "nodes": 2, "ranks_per_node": 1, "pipeline": "threads:jpeg", "trainer": "null",
            "launcher": "mpirun", "batch": 4, "workers": 1,
        },
        "ladder": {
            "stages": ["read"], "caches": ["cold"], "repeats": 1, "probe": False, "digest": False,
        },
    }  # fmt: skip
    done = clusters.run(cluster, clusters.words(cluster, spec, "--hosts", names))
    assert done.returncode == 0, done.stderr
    found = clusters.records(cluster)
    assert {r["status"] for r in found} == {"VALID"}, [r["reasons"] for r in found]
    assert not list(Path(cluster.folder).glob("iobench-placed-*"))
    return found


def test_the_third_host_writes_what_two_read(cluster: Hosts) -> None:
    (record,) = measured(cluster, "h1,h2,h3")
    assert [node["node"] for node in record["nodes"]] == ["h1", "h2"]
    assert record["cache"]["beyond"] == f"{FIRST_TOUCH}, {BY_ANOTHER}"
    assert sum(sum(rank["steps"]["samples"]) for rank in record["ranks"]) == SAMPLES


def test_without_a_third_the_driver_s_host_does(cluster: Hosts) -> None:
    (record,) = measured(cluster, "h1,h2")
    assert record["cache"]["beyond"] == FIRST_TOUCH
