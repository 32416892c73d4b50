"""A folder of another host by sshfs: detected, cold proven in four pipelines, warm if it can be."""

from __future__ import annotations

from typing import Iterator, NamedTuple, Tuple

import pytest

from iobench.core.cases import Case, Dataset, Trial
from iobench.core.records import EXPLORATORY, VALID, Record
from iobench.data import convert, make
from iobench.host import filesystems
from iobench.run.trial import TrialSettings
from tests.build.attempts import attempted
from tests.build.servers import Evicting
from tests.build.sshfs import Sshfs, sshfs
from tests.capabilities import need

pytestmark = pytest.mark.slow
#: Without it, sshfs drops a file's pages whenever it is opened.
KEEPS = "auto_cache"


class Mounted(NamedTuple):
    filesystem: Sshfs
    dataset: Dataset
    keeps: bool


@pytest.fixture(scope="module", params=[False, True], ids=["default", KEEPS])
def mounted(request: pytest.FixtureRequest) -> Iterator[Mounted]:
    """48 samples (5 MB), mounted by sshfs's default and so that files keep their pages."""
    for name in ("sshfs", "torch", "lmdb", "hdf5"):
        need(name)
    with sshfs(*[KEEPS] * request.param) as filesystem:
        made = make.make("imagenet-like", filesystem.mount / "set", samples=48, seed=1)
        for form in ("lmdb", "hdf5"):
            convert.convert(made, form)
        yield Mounted(filesystem, made, request.param)


def measured(
    mounted: Mounted, stage: str, cache: str, form: str = "jpeg", loader: str = "torch"
) -> Tuple[Record, int]:
    """Return the record, and what the host's server read for each attempt."""
    where = {"format": form, "location": mounted.dataset.root}
    case = Case(loader=loader, trainer="null", batch=8, workers=1, **where)
    before = mounted.filesystem.served()
    settings = TrialSettings(agent=Evicting(mounted.filesystem))
    record = attempted(Trial("t", case, stage, cache), mounted.dataset, settings)
    return record, (mounted.filesystem.served() - before) // record.attempt


def test_it_is_described_as_what_it_is(mounted: Mounted) -> None:
    facts = filesystems.describe_mount(mounted.filesystem.mount / "set")
    assert facts["filesystem"] == "sshfs"
    assert facts["daemon"] == "sshfs"
    assert facts["detected"] == "the mount table; statfs(2) agrees"


@pytest.mark.parametrize(
    ("stage", "form"),
    [
        ("read", "jpeg"),
        ("read", "lmdb"),
        ("read", "hdf5"),
        ("ceiling", "jpeg"),
        ("ceiling", "lmdb"),
    ],
)
def test_cold_is_valid_and_the_server_agrees(mounted: Mounted, stage: str, form: str) -> None:
    """What fio reads of LMDB is looked up in the file first, before the clock starts."""
    if stage == "ceiling":
        need("fio")
    record, served = measured(mounted, stage, "cold", form)
    assert (record.status, record.reasons) == (VALID, ())
    crossed = record.cache.bytes_storage
    assert crossed is not None
    assert 0.98 < crossed / record.cache.bytes_needed < 1.1
    assert crossed < 1.02 * served
    assert (stage, form) == ("ceiling", "lmdb") or crossed > 0.98 * served


def test_the_next_epoch_that_dali_reads_ahead_is_no_proof(mounted: Mounted) -> None:
    """Where opening a file drops its pages, it crosses the mount again."""
    need("dali")
    record, served = measured(mounted, "read", "cold", loader="dali")
    assert record.status == (VALID if mounted.keeps else EXPLORATORY), record.reasons
    crossed = record.cache.bytes_storage
    assert crossed is not None
    assert crossed > 0.98 * record.cache.bytes_needed
    assert crossed < 1.02 * served


def test_warm_is_valid_where_files_keep_their_pages(mounted: Mounted) -> None:
    record, served = measured(mounted, "read", "warm")
    assert (record.status == VALID) == mounted.keeps, record.reasons
    assert served > 0
