"""The servers' cache of a real distributed filesystem: its size is found, and what it leaves open.

Its servers share this machine's page cache; a control group limits how much of it is theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, List, NamedTuple, Tuple

import pytest

from iobench.analysis.beyond import SMALLER, Beyond, servers_cache_of
from iobench.analysis.evidence import evidence
from iobench.analysis.storage_results import ServersCacheResult
from iobench.core.cases import Case, Dataset, Plan, Trial
from iobench.core.records import FIRST_TOUCH, VALID, Record
from iobench.data import make
from iobench.host import page_cache
from iobench.run.trial import TrialSettings, run_trial
from tests.build.gluster import Gluster, gluster
from tests.capabilities import need

pytestmark = pytest.mark.slow
MIB = 1 << 20
#: 248 MiB in records of 1 MiB: working sets of 8, 16, 32, 64 and 128 MiB.
SAMPLES, SETS = 252, 5
LIMIT = 64 * MIB
#: Bytes/s of the bricks' disk: a pass over it is slower than one from memory.
DISK = 80_000_000


class Cluster(NamedTuple):
    volume: Gluster
    dataset: Dataset


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    need("gluster")
    need("blkio")
    need("memory-group")
    with gluster() as volume:
        volume.set("performance.quick-read", "off")
        root = volume.mount / "set"
        made = make.make("records", root, samples=SAMPLES, seed=1, sizes=(MIB, 1))
        with volume.throttled(read_bps_device=DISK):
            yield Cluster(volume, made)


def trial(dataset: Dataset, stage: str) -> Trial:
    where = {"location": dataset.root}
    case = Case(label="c", loader="threads", trainer="null", batch=4, workers=1, **where)
    return Trial(stage, case, stage, "cold")


def found_in(data: Dataset, records: List[Record]) -> ServersCacheResult:
    trials = tuple(record.trial for record in records)
    plan = Plan("s", "", 1, 1.0, data, (trials[0].case,), trials)
    found = servers_cache_of(evidence(plan, records), trials[0].case)
    assert found is not None, [r.reasons for r in records]
    return found


def swept(data: Dataset) -> Tuple[Record, ServersCacheResult]:
    record = run_trial(trial(data, "reread"), data, 1, TrialSettings())
    assert (record.status, record.reasons) == (VALID, ())
    return record, found_in(data, [record])


def around(found: ServersCacheResult) -> bool:
    """Return whether the limit is where the knee is said to be."""
    low, high = found.low or 0, found.high or 0
    return LIMIT / 8 < low < 1.1 * LIMIT and high > LIMIT / 1.1


def test_the_knee_is_where_the_servers_memory_ends(cluster: Cluster) -> None:
    """Beside other work the rates of single passes vary: three sweeps at most."""
    volume, data = cluster
    with volume.limited(LIMIT):
        for _ in range(3):
            record, found = swept(data)
            if around(found):
                break
        again = run_trial(trial(data, "read"), data, 1, TrialSettings())
    assert around(found), found
    assert len(found.sets) == SETS
    assert "the servers' cache holds between" in found.words
    plan = Plan("s", "", 1, 1.0, data, (record.trial.case,), (record.trial, again.trial))
    assert Beyond(evidence(plan, [record, again])).label(again) == SMALLER


def test_no_knee_where_the_servers_hold_all_of_it(cluster: Cluster) -> None:
    volume, data = cluster
    for _ in range(3):
        volume.evict_servers()
        _, found = swept(data)
        if found.low and found.high is None:
            break
    assert found.low
    assert found.high is None


def test_a_first_touch_is_read_from_what_writing_left(cluster: Cluster) -> None:
    """Why it is no proof: these servers keep in memory what they write."""
    volume, data = cluster
    page_cache.warm(Path(data.root).rglob("*.jpg"))  # what is copied comes from this client
    before, on_disk = volume.served(), read_from(volume.loop)
    record = run_trial(trial(data, "read"), data, 1, TrialSettings(first_touch=True))
    served, from_disk = volume.served() - before, read_from(volume.loop) - on_disk
    assert (record.status, record.reasons) == (VALID, ())
    assert record.cache.beyond == FIRST_TOUCH
    crossed, needed = record.cache.bytes_storage, record.cache.bytes_needed
    assert crossed is not None
    assert 0.98 < crossed / needed < 1.1
    assert served > 0.98 * needed
    assert from_disk < 0.5 * served
    assert not list(volume.mount.glob("iobench-placed-*"))


def read_from(device: str) -> int:
    """Return the bytes that have been read from a block device."""
    fields = Path("/sys/class/block", Path(device).name, "stat").read_text().split()
    return 512 * int(fields[2])
