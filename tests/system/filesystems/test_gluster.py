"""A real distributed filesystem: what is detected, when cold is proven, and when it must not be."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import threading
from pathlib import Path
from typing import Iterator, NamedTuple, Tuple

import pytest

from iobench.core.cases import Case, Dataset, Trial
from iobench.core.records import EXPLORATORY, INVALID, VALID, Record
from iobench.data import convert, make
from iobench.host import filesystems, io_counters, locks, page_cache
from iobench.host.agent import LOCAL
from iobench.run import copies
from iobench.run.block import run_block
from iobench.run.trial import TrialSettings, run_trial
from tests.build.attempts import attempted
from tests.build.disks import disk, run
from tests.build.gluster import Gluster, gluster
from tests.capabilities import need

pytestmark = pytest.mark.slow


class Cluster(NamedTuple):
    volume: Gluster
    dataset: Dataset


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A volume that holds 48 samples (5 MB); its client keeps no data of its own.

    A cache that a test switches on keeps what it has for a minute in place of its default, a
    second: longer than a busy machine takes from looking a file up to reading it.
    """
    need("gluster")
    kept = {"performance__qr_cache_timeout": "60", "performance__cache_refresh_timeout": "60"}
    with gluster(**kept) as volume:
        volume.set("performance.quick-read", "off")
        made = make.make("imagenet-like", volume.mount / "set", samples=48, seed=1)
        for form in ("lmdb", "hdf5"):
            convert.convert(made, form)
        yield Cluster(volume, made)


def trial(
    dataset: Dataset, stage: str, cache: str, form: str = "jpeg", loader: str = "threads"
) -> Trial:
    where = {"format": form, "location": dataset.root}
    case = Case(loader=loader, trainer="null", batch=8, workers=1, **where)
    return Trial("t", case, stage, cache)


def measured(
    cluster: Cluster, stage: str, cache: str, form: str = "jpeg", loader: str = "threads"
) -> Tuple[Record, int]:
    """Run one attempt from cold servers; return it and what the bricks read for their clients."""
    cluster.volume.evict_servers()
    before = cluster.volume.served()
    planned = trial(cluster.dataset, stage, cache, form, loader)
    record = run_trial(planned, cluster.dataset, 1, TrialSettings())
    return record, cluster.volume.served() - before


def test_it_is_described_as_what_it_is(cluster: Cluster) -> None:
    facts = filesystems.describe_mount(cluster.volume.mount / "set")
    assert facts["filesystem"] == "glusterfs"
    assert facts["detected"] == "the mount table; statfs(2) agrees"
    assert (facts["volume_type"], facts["bricks"]) == ("distribute", 2)
    assert "quick-read" not in str(facts["client_translators"])
    file = next((cluster.volume.mount / "set").rglob("*.jpg"))
    assert str(cluster.volume.bricks[0].parent) in str(filesystems.describe_mount(file)["layout"])


@pytest.mark.parametrize(
    ("stage", "form", "loader"),
    [
        ("read", "jpeg", "torch"),
        ("read", "lmdb", "torch"),
        ("read", "hdf5", "torch"),
        ("read", "jpeg", "dali"),
        ("ceiling", "jpeg", "threads"),
    ],
)
def test_cold_is_valid_and_the_bricks_agree(
    cluster: Cluster, stage: str, form: str, loader: str
) -> None:
    """Read-ahead of a mapped file may bring in more than its samples: so much crossed as well."""
    if stage == "ceiling":
        need("fio")
    if loader != "threads":
        need(loader)
    record, served = measured(cluster, stage, "cold", form, loader)
    assert (record.status, record.reasons) == (VALID, ())
    crossed = record.cache.bytes_storage
    assert crossed is not None
    assert record.cache.others_bytes is not None
    assert abs(crossed / served - 1) < 0.02
    assert 0.98 < crossed / record.cache.bytes_needed < 1.1


def test_warm_is_valid_and_the_bricks_are_left_alone(cluster: Cluster) -> None:
    before = cluster.volume.served()
    planned = trial(cluster.dataset, "read", "warm")
    record = attempted(planned, cluster.dataset, TrialSettings())
    assert (record.status, record.reasons) == (VALID, ())
    assert cluster.volume.served() - before <= record.cache.bytes_needed  # to warm it


def test_a_lock_that_its_holder_shares_reaches_nobody_who_waits(cluster: Cluster) -> None:
    """So LMDB's readers would hang with ``lock = true``, and are left out."""
    assert locks.unshared(cluster.volume.mount) == "8 of 8 that waited for it did not get it"


def test_a_neighbour_on_the_mount_is_not_taken_for_the_trial(cluster: Cluster) -> None:
    with reading(cluster.volume.mount / "neighbour"):
        record, _ = measured(cluster, "read", "cold")
    assert record.status == EXPLORATORY
    assert "others" in record.reasons[0]


def test_what_the_client_daemon_keeps_is_never_called_cold(cluster: Cluster) -> None:
    cluster.volume.set("performance.io-cache", "on")
    try:
        for _ in range(6):  # the first fills the daemon's cache
            record, served = measured(cluster, "read", "cold")
            if served < 0.5 * record.cache.bytes_needed:
                break
        kept = LOCAL.caches(cluster.volume.mount)
        facts = filesystems.describe_mount(cluster.volume.mount)
    finally:
        cluster.volume.set("performance.io-cache", "off")
    assert served < 0.5 * record.cache.bytes_needed
    assert record.status == INVALID
    assert "in this client's own caches were io-cache" in record.reasons[0]
    assert kept["io-cache"] >= record.cache.bytes_needed
    assert facts["client_cache_io-cache_bytes"] == kept["io-cache"]


def test_small_files_that_quick_read_keeps_are_never_called_cold(cluster: Cluster) -> None:
    """Files below 64 KiB, and the translator as it is by default."""
    small = make.make("smoke", cluster.volume.mount / "small", samples=48, seed=1)
    assert all(f.stat().st_size < 64 << 10 for f in Path(small.root).rglob("*.jpg"))
    cluster.volume.set("performance.quick-read", "on")
    try:
        for _ in range(6):  # the first fills it, by looking names up: bricks read nothing for that
            record, served = measured(cluster._replace(dataset=small), "read", "cold")
            if (record.cache.bytes_storage or 0) < 0.5 * record.cache.bytes_needed:
                break
    finally:
        cluster.volume.set("performance.quick-read", "off")
    assert 0 <= served < 0.5 * record.cache.bytes_needed
    assert (record.cache.bytes_storage or 0) < 0.5 * record.cache.bytes_needed
    assert record.status == INVALID, record.cache
    assert "quick-read" in record.reasons[0]


def test_what_the_client_daemon_keeps_goes_with_the_kernel_s_names(cluster: Cluster) -> None:
    """As ``allow_drop_caches`` allows: the kernel tells the daemon of every file it forgets."""
    for option in ("performance.quick-read", "performance.io-cache"):
        cluster.volume.set(option, "on")
    try:
        small = make.make("smoke", cluster.volume.mount / "forgotten", samples=48, seed=1)
        for _ in range(3):
            planned = trial(small, "read", "cold")
            record = run_trial(planned, small, 1, TrialSettings(allow_drop_caches=True))
            assert (record.status, record.reasons) == (VALID, ())
            assert record.cache.label == "client-cold"
    finally:
        for option in ("performance.quick-read", "performance.io-cache"):
            cluster.volume.set(option, "off")


@contextlib.contextmanager
def arms(dataset: Dataset) -> Iterator[Tuple[list[Trial], TrialSettings]]:
    """Two cold arms that take turns, each with a copy of the data on the volume."""
    settings = TrialSettings()
    trials = [
        dataclasses.replace(
            trial(dataset, "load", "cold"), id=f"000{i}-t", contrast="c01", arm=f"arm {i}", block=1,
            position=i, slice_s=0.05, copy=i,
        )
        for i in (1, 2)
    ]  # fmt: skip
    with contextlib.ExitStack() as undo:
        copies.make(trials, dataset, settings, undo)
        yield trials, settings


def test_cold_arms_that_take_turns_are_proven_together(cluster: Cluster) -> None:
    with arms(cluster.dataset) as (trials, settings):
        cluster.volume.evict_servers()
        before = cluster.volume.served()
        records = run_block(trials, cluster.dataset, [1, 1], settings)
        served = cluster.volume.served() - before
    assert [(r.status, r.reasons) for r in records] == [(VALID, ())] * 2
    for record in records:
        crossed = record.cache.bytes_storage
        assert crossed is not None
        assert 0.98 < crossed / record.cache.bytes_needed < 1.1
        assert "the block's other arms" in record.cache.counter
        (counted,) = record.notes["mount_bytes"].values()
        assert abs(counted / served - 1) < 0.02


def test_an_arm_that_the_client_daemon_served_proves_none_of_its_block(cluster: Cluster) -> None:
    cluster.volume.set("performance.io-cache", "on")
    try:
        with arms(cluster.dataset) as (trials, settings):
            (kept, _) = settings.copies.values()
            files = sorted(Path(kept.root).rglob("*.jpg"))
            page_cache.evict(files)
            page_cache.warm(files)  # fills the daemon's cache
            records = run_block(trials, cluster.dataset, [1, 1], settings)
    finally:
        cluster.volume.set("performance.io-cache", "off")
    assert [r.status for r in records] == [INVALID] * 2
    assert all("in this client's own caches were io-cache" in r.reasons[0] for r in records)


def test_an_overlay_on_it_is_proven_by_its_layer(cluster: Cluster) -> None:
    """Its upper folder is on another filesystem, and holds nothing of the data."""
    lower = cluster.volume.mount
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as name:
        folders = [Path(name, part) for part in ("upper", "work", "merged")]
        for folder in folders:
            folder.mkdir()
        upper, work, merged = folders
        layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
        run("mount", "-t", "overlay", "overlay", "-o", layers, str(merged))
        try:
            facts = filesystems.describe_mount(merged / "set")
            files = sorted((merged / "set/jpeg").rglob("*.jpg"))
            needed, crossed = read_cold(files)
        finally:
            run("umount", str(merged))
    assert (facts["filesystem"], facts["fstype"], facts["overlay"]) == (
        "glusterfs",
        "overlay",
        True,
    )
    assert f"overlay at {merged} (overlay), on fuse.glusterfs at {lower} (" in str(facts["stack"])
    assert " and " not in str(facts["stack"])
    assert 0.98 * needed < crossed < 1.1 * needed


def test_a_disk_in_a_file_on_it_is_proven_by_both(cluster: Cluster) -> None:
    mount = cluster.volume.mount
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as name:
        point, image = Path(name, "point"), mount / "disk.image"
        with disk(image, point, 32 << 20):
            (point / "x").write_bytes(os.urandom(4 << 20))
            os.sync()
            facts = filesystems.describe_mount(point)
            assert LOCAL.cold(point) == ""
            needed, crossed = read_cold([point / "x"])
        image.unlink()
    assert (facts["filesystem"], facts["fstype"]) == ("glusterfs", "ext4")
    assert f"on fuse.glusterfs at {mount} (" in str(facts["stack"])
    assert 0.98 * needed < crossed < 1.1 * needed


def test_a_squashfs_on_it_is_refused_with_the_reason(cluster: Cluster) -> None:
    """mount(8) attaches it without direct I/O: its file stays in this host's page cache."""
    need("squashfs")
    image = cluster.volume.mount / "set.squashfs"
    run("mksquashfs", cluster.dataset.root, str(image), "-quiet", "-no-progress")
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as point:
        run("mount", "-o", "loop,ro", str(image), point)
        try:
            facts = filesystems.describe_mount(Path(point))
            reason = LOCAL.cold(Path(point))
        finally:
            run("umount", point)
    assert (facts["filesystem"], facts["fstype"]) == ("glusterfs", "squashfs")
    assert "--direct-io=on" in reason


def read_cold(files: list[Path]) -> Tuple[int, int]:
    """Read files from cold; return their bytes and what crossed, both as a trial counts them."""
    page_cache.evict(files)
    assert page_cache.residency(files).fraction == 0.0
    before, counters = io_counters.snapshot(), LOCAL.counters(files[0])
    page_cache.warm(files, threads=1)
    after = LOCAL.counters(files[0])
    io = io_counters.difference(before, io_counters.snapshot())
    moved = {name: after[name] - n for name, n in counters.items()}
    crossed = LOCAL.crossed(files[0], io, moved)
    assert crossed.nbytes is not None, crossed.counter
    return sum(f.stat().st_size for f in files), crossed.nbytes


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """A neighbour that reads a file of its own from the servers, again and again."""
    path.write_bytes(os.urandom(8 << 20))
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            page_cache.evict([path])
            page_cache.warm([path], threads=1)

    neighbour = threading.Thread(target=read)
    neighbour.start()
    try:
        yield
    finally:
        over.set()
        neighbour.join()
        path.unlink()
