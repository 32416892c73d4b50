"""How ranks start, for real: their software cold or warm, with and without a container."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from iobench.core.cases import Case, Dataset, Trial
from iobench.core.records import INVALID, VALID, Record
from iobench.run.cache_state import MAPPED_MAX
from iobench.run.trial import TrialSettings, run_trial
from tests.build import containers
from tests.build.datasets import indexed
from tests.build.rows import first
from tests.capabilities import need

pytestmark = pytest.mark.system
#: Bytes that a start of the torch stack reads at least: libtorch_cpu.so alone has more.
LEAST = 50e6


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Samples that nobody reads."""
    return indexed(tmp_path_factory.mktemp("data"), 16, size=10, classes=3, digest="d")


def started(data: Dataset, cache: str, runtime: str, **keys: Any) -> Record:
    case = Case(
        format="null", loader="null", trainer="torch", location=data.root, batch=4, workers=1,
        trainer_options={"net": "resnet44cifar", "threads": 1}, transform="cifar32",
        runtime=runtime, **keys,
    )  # fmt: skip
    need(runtime)
    services = containers.services() if runtime == "docker" else contextlib.nullcontext()
    with services:
        settings = TrialSettings(images=containers.images_of(case))
        return run_trial(Trial("t", case, "start", cache), data, 1, settings)


def check(record: Record, cache: str, ranks: int = 1) -> None:
    assert (record.status, record.reasons) == (VALID, ())
    assert len(record.ranks) == ranks
    assert all(rank.fingerprint["libraries"]["torch"] for rank in record.ranks)
    longest = max(rank.startup.process_s for rank in record.ranks)
    assert 0 < longest <= record.ready_s + 0.02, "it began before it was started"
    software, before = record.notes["software"], record.cache.resident_before
    assert software["bytes"] > 2 * LEAST
    assert Path(software["root"]).exists()
    if cache == "cold":
        assert before <= MAPPED_MAX
        assert LEAST < software["fetched"] <= software["bytes"]
    else:
        assert before > 0.999
        assert software["fetched"] < 1e6


@pytest.mark.parametrize("cache", ["cold", "warm"])
@pytest.mark.parametrize(
    "runtime", first(["bare", *containers.RUNTIMES], ["bare", *containers.FIRST])
)
def test_one_rank(data: Dataset, runtime: str, cache: str) -> None:
    for _ in range(3):  # the software of bare is these tests' own: another one may have mapped it
        record = started(data, cache, runtime)
        if record.status != INVALID:
            break
    check(record, cache)


@pytest.mark.parametrize("mode", first(["sif", "sandbox"], ["sif"]))
def test_a_container_a_rank(data: Dataset, mode: str) -> None:
    """Open MPI starts two containers, which share the pages of one image."""
    need("mpirun")
    record = started(
        data, "cold", "apptainer", runtime_options={"mode": mode}, launcher="mpirun", scope="rank",
        world_size=2,
    )  # fmt: skip
    check(record, "cold", ranks=2)
    assert record.runtime["scope"] == "rank"
    spaces = {rank.fingerprint["mount_namespace"] for rank in record.ranks}
    assert len(spaces) == 2
