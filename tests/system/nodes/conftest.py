"""Two hosts, each with the dataset on a filesystem of its own, and a Slurm on them."""

from __future__ import annotations

import shutil
from typing import Iterator

import pytest

from tests.build import clusters
from tests.build.hosts import Hosts
from tests.build.slurm import slurm
from tests.capabilities import need


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    for capability in ("hosts", "loop", "lmdb", "torch"):
        need(capability)
    folder = tmp_path_factory.mktemp("cluster")
    with clusters.with_data(folder) as found:
        yield found
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def batch(cluster: Hosts) -> None:
    need("slurm")
    slurm(cluster)
