"""Data larger than memory in a container and on bare metal: what later epochs find in memory."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Iterator

import pytest

from iobench.analysis.steady import hit_ratio
from iobench.core.cases import Case, Dataset, Trial
from iobench.core.records import INVALID, VALID, Record
from iobench.equations.stalls import lru_hit_ratio
from iobench.host import limits
from iobench.run.trial import TrialSettings, run_trial
from tests.build import containers
from tests.build.disks import dataset_on_disk
from tests.capabilities import need

pytestmark = [pytest.mark.slow, pytest.mark.system]
#: 84 MB of data.  Programs, and in a container the image's files, take some of the limit.
SAMPLES, LIMIT = 768, 100 << 20
#: Bytes of the program's and the image's own files that were evicted cross again, and take memory
#: from the data while it runs: less is held then than at the end, when the share is counted.
SLACK = 0.06


@pytest.fixture(scope="module")
def data() -> Iterator[Dataset]:
    need("loop")
    if reason := limits.refused(Case(memory_bytes=LIMIT)):
        pytest.skip(reason)
    with dataset_on_disk(Path(__file__).parent, SAMPLES, 400 << 20) as made:
        yield made


def measured(
    data: Dataset, runtime: str, cache: str, memory_bytes: int = LIMIT, **options: str
) -> Record:
    case = Case(
        format="jpeg", loader="threads", trainer="null", location=data.root, batch=8, workers=1,
        memory_bytes=memory_bytes, runtime=runtime, runtime_options=options,
    )  # fmt: skip
    need(runtime)
    services = containers.services() if runtime == "docker" else contextlib.nullcontext()
    with services:
        settings = TrialSettings(lock_pages=False, images=containers.images_of(case))
        return run_trial(Trial("t", case, "read", cache), data, 1, settings)


def hits(record: Record) -> tuple[float, float]:
    """Return (fraction of the data in memory at the end, hit ratio) of a trial that is proven."""
    assert (record.status, record.reasons) == (VALID, ())
    assert sum(record.ranks[0].steps.samples) == 3 * SAMPLES
    cached, found = record.cache.resident_after, hit_ratio(record)
    assert cached is not None
    assert found is not None
    return cached, found


@pytest.mark.parametrize(
    ("runtime", "options"),
    [
        ("bare", {}),
        ("unpacked", {}),
        ("apptainer", {"mode": "sif"}),
        ("apptainer", {"mode": "sandbox"}),
        ("docker", {}),
    ],
)
def test_it_finds_what_the_rest_of_its_memory_gives(
    runtime: str, options: dict[str, str], data: Dataset
) -> None:
    """How much that is varies: the image's own files, and a SIF's blocks, are in it as well.

    They can take the data's place in the last moment, so one of three trials has to agree.
    """
    for _ in range(3):
        cached, found = hits(measured(data, runtime, "steady", **options))
        held = max(cached - SLACK, 0.0)
        least = (lru_hit_ratio(held) if held else 0.0) - SLACK
        assert 0 < found < 1
        if least <= found <= cached + SLACK:
            break
    assert least <= found <= cached + SLACK


def test_warm_is_refused_there_too(data: Dataset) -> None:
    record = measured(data, "unpacked", "warm", data.bytes // 2)
    assert record.status == INVALID
    assert "measure 'steady'" in record.reasons[0]
