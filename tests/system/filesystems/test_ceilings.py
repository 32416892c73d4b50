"""A device of known speed: its own limit is named, below a local disk and below a real cluster.

What a rate is worth under load is not asserted here: benchmarks/ceilings.py has the figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import List, Tuple

import pytest

from benchmarks.throttle import throttled
from iobench.analysis.evidence import evidence
from iobench.analysis.storage import storage_of
from iobench.analysis.storage_results import StorageResult
from iobench.core.cases import Case, Dataset, Extent, Plan, Trial
from iobench.core.records import VALID, Record
from iobench.data import make
from iobench.host import page_cache
from iobench.run import ceiling, requests
from iobench.run.trial import TrialSettings, run_trial
from tests.build.gluster import gluster
from tests.build.rows import rows
from tests.build.servers import Evicting
from tests.capabilities import need

pytestmark = pytest.mark.slow
SAMPLES = 32  # 3.5 MB


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    need("fio")
    need("loop")
    need("blkio")
    monkeypatch.setattr(requests, "POINT_MS", 200)
    monkeypatch.setattr(requests, "LARGEST_MS", 500)


def made(folder: Path) -> Dataset:
    return make.make("imagenet-like", folder / "set", samples=SAMPLES, seed=1)


def measured(data: Dataset, settings: TrialSettings) -> Tuple[StorageResult, List[Record]]:
    """Run the two rungs and return what they say of the mount."""
    case = Case(
        label="c", format="jpeg", loader="threads", trainer="null", location=data.root, batch=8,
        workers=2,
    )  # fmt: skip
    trials = [Trial(stage, case, stage, "cold") for stage in ("requests", "ceiling")]
    records = [run_trial(trial, data, 1, settings) for trial in trials]
    plan = Plan("ceilings", "", 1, 1.0, data, (case,), tuple(trials))
    found = storage_of(evidence(plan, records), case)
    assert found is not None, [r.reasons for r in records]
    return found, records


@pytest.mark.parametrize(
    ("limit", "binding"), [({"read_bps": 5_000_000}, "bandwidth"), ({"read_iops": 40}, "IOPS")]
)
def test_a_throttled_disk_names_its_throttle(limit: dict[str, int], binding: str) -> None:
    with throttled(64 << 20) as mount:
        data = made(mount.path)
        mount.limit(**limit)
        found, records = measured(data, TrialSettings(enter=mount.prefix))
    assert [r.status for r in records] == [VALID] * 2, [r.reasons for r in records]
    assert found.binding == binding
    assert f"the mount's {binding}" in found.words


@pytest.mark.parametrize(
    ("limit", "binding"),
    rows([({"read_iops_device": 40}, "IOPS")], [({"read_bps_device": 3_000_000}, "bandwidth")]),
)
def test_a_throttle_below_a_clusters_bricks_is_the_mounts(
    limit: dict[str, int], binding: str
) -> None:
    need("gluster")
    with gluster() as volume:
        volume.set("performance.quick-read", "off")
        data = made(volume.mount)
        with volume.throttled(**limit):
            found, records = measured(data, TrialSettings(agent=Evicting(volume)))
    assert [r.status for r in records] == [VALID] * 2, [r.reasons for r in records]
    assert found.binding == binding


def test_far_servers_are_latency_and_more_in_flight_would_cure_it() -> None:
    """The servers wait 50 ms before every read."""
    need("gluster")
    delay = {"delay_gen__delay_percentage": "100", "delay_gen__delay_duration": "50000"}
    with gluster(debug__delay_gen="posix", delay_gen__enable="read", **delay) as volume:
        volume.set("performance.quick-read", "off")
        found, _ = measured(made(volume.mount), TrialSettings())
    assert found.binding == "latency"
    assert found.latency_s > 0.05
    assert found.deeper_samples_per_s > 2 * found.roofs["latency"]


def test_two_nodes_have_the_sum_of_their_disks(tmp_path: Path) -> None:
    """One throttled disk each; each reader's files are on its node's own."""
    per_s = 3_000_000
    with throttled(64 << 20) as one, throttled(64 << 20) as other:
        files = [made(mount.path) for mount in (one, other)]
        paths = [sorted(Path(data.root, "jpeg").rglob("*.jpg")) for data in files]
        samples = [[Extent(str(p), 0, p.stat().st_size)] for pair in zip(*paths) for p in pair]
        page_cache.evict([path for each in paths for path in each])
        fios = []
        for mount in (one, other):
            mount.limit(read_bps=per_s)
            fios.append(ceiling.Fio(tmp_path / str(len(fios)), enter=mount.prefix))
        done = ceiling.run(ceiling.plan(samples, jobs=2, batch=1), *fios)
    assert done.invalid == ""
    assert [part["readers"] for part in done.nodes] == [1, 1]
    assert done.bytes_per_s == pytest.approx(2 * per_s, rel=0.15)
