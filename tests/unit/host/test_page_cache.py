"""The page cache on real files: evict, warm, a stated fraction, and the proof that judges it."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Iterator, List

import pytest

from iobench.core.cases import Case, Extent, Trial
from iobench.core.errors import CacheStateError
from iobench.core.records import EXPLORATORY, INVALID, VALID, CacheProof
from iobench.host import page_cache, residency
from iobench.host.agent import LOCAL
from iobench.host.mounts import mount_of
from iobench.host.page_cache import Residency
from iobench.run.cache_state import judge
from iobench.run.trial_node import TrialNode
from iobench.run.trial_settings import TrialSettings
from tests.build import pages

PAGE = residency.PAGE_BYTES


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder that is not on tmpfs, whatever the temporary directory is."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as name:
        assert mount_of(Path(name)).fstype != "tmpfs"
        yield Path(name)


def write(folder: Path, name: str, nbytes: int) -> Path:
    path = folder / name
    path.write_bytes(os.urandom(nbytes))
    return path


@pytest.fixture
def files(disk: Path) -> List[Path]:
    return [write(disk, f"{i}.jpg", 1 + 37_123 * i) for i in range(20)]


def test_a_file_just_written_is_evicted_although_it_was_dirty(disk: Path) -> None:
    path = write(disk, "new", 3 << 20)
    assert page_cache.residency([path]).fraction == 1.0
    page_cache.evict([path])
    assert page_cache.residency([path]) == Residency(768, 0, page_cache.residency([path]).method)


def test_evict_then_warm(files: List[Path]) -> None:
    page_cache.evict(files)
    assert page_cache.residency(files).fraction == 0.0
    _, found = pages.read_whole(lambda: page_cache.warm(files), lambda: page_cache.residency(files))
    assert found.fraction == 1.0
    assert found.pages == sum(-(-path.stat().st_size // PAGE) for path in files)


def test_warm_reads_large_files_in_ranges(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "RANGE_BYTES", 1 << 20)
    path = write(disk, "large", (5 << 20) + 17)
    page_cache.evict([path])
    _, found = pages.read_whole(
        lambda: page_cache.warm([path], threads=3), lambda: page_cache.residency([path])
    )
    assert found.fraction == 1.0


def test_an_empty_file_and_no_file_have_nothing_that_could_be_cold(disk: Path) -> None:
    empty = write(disk, "empty", 0)
    assert page_cache.residency([empty]).fraction == 1.0
    assert page_cache.residency([]).fraction == 1.0


def test_residency_of_extents_counts_a_shared_page_once(disk: Path) -> None:
    path = write(disk, "shard", 64 * PAGE)
    extents = [Extent(str(path), 0, PAGE + 1), Extent(str(path), PAGE + 1, PAGE)]
    page_cache.evict([path])
    assert page_cache.extent_residency(extents) == Residency(
        3, 0, page_cache.residency([path]).method
    )
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, 1, 0)
    os.close(fd)
    assert page_cache.extent_residency(extents).resident == 1
    assert page_cache.extent_residency(extents[1:]).resident == 0


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.35, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("layout", ["files", "shard", "small"])
def test_a_stated_fraction_is_reached_and_no_more(disk: Path, layout: str, fraction: float) -> None:
    sizes = [20_000 + 7_919 * i % 60_000 for i in range(200)]
    if layout == "small":  # several samples share a page
        sizes = [1_000 + 791 * i % 3_000 for i in range(2000)]
    if layout == "files":
        samples = [
            [Extent(str(write(disk, f"{i}.jpg", size)), 0, size)] for i, size in enumerate(sizes)
        ]
    else:
        shard = write(disk, "shard", sum(sizes))
        samples = [[Extent(str(shard), sum(sizes[:i]), n)] for i, n in enumerate(sizes)]
    reached = page_cache.set_fraction(samples, fraction, seed=3)
    whole = page_cache.residency({Path(s[0].path) for s in samples})
    assert reached.fraction == pytest.approx(fraction, abs=0.03)
    assert whole.fraction == pytest.approx(fraction, abs=0.03)


def test_the_cached_subset_depends_on_the_seed_alone(disk: Path) -> None:
    samples = [[Extent(str(write(disk, f"{i}", 40_000)), 0, 40_000)] for i in range(30)]

    def cached(seed: int) -> List[bool]:
        page_cache.set_fraction(samples, 0.5, seed)
        return [bool(page_cache.extent_residency(sample).resident) for sample in samples]

    first = cached(1)
    assert cached(1) == first
    assert cached(2) != first


def test_a_fraction_beyond_one_is_refused(disk: Path) -> None:
    with pytest.raises(CacheStateError, match=r"1\.5"):
        page_cache.set_fraction([], 1.5, 0)


def test_another_reader_makes_the_fraction_fail(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write(disk, f"{i}", 40_000) for i in range(30)]
    samples = [[Extent(str(path), 0, 40_000)] for path in paths]
    monkeypatch.setattr(page_cache, "_read", lambda *_: [path.read_bytes() for path in paths])
    with pytest.raises(CacheStateError, match=r"asked for 0\.500.*reached (0\.9|1\.0)"):
        page_cache.set_fraction(samples, 0.5, 0)


def test_mincore_agrees_with_cachestat(files: List[Path]) -> None:
    from tests.capabilities import need

    need("cachestat")
    page_cache.evict(files)
    with pages.warm(files[::2]):
        for path in files:
            whole = -(-path.stat().st_size // PAGE)
            fd = os.open(path, os.O_RDONLY)
            try:
                method, count = residency.count(fd, [(0, whole)])
                assert method == "cachestat"
                assert residency.mincore(fd, 0, whole) == count
            finally:
                os.close(fd)


def test_mincore_is_used_where_cachestat_is_absent(
    files: List[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency, "CACHESTAT", 9999)  # ENOSYS, as before Linux 6.5
    assert not residency.cachestat_works()
    page_cache.evict(files)
    with pages.warm(files[:10]):
        found = page_cache.residency(files)
    assert found.method == "mincore"
    assert found.resident == sum(-(-path.stat().st_size // PAGE) for path in files[:10])


@pytest.mark.slow
@pytest.mark.parametrize("call", ["cachestat", "mincore"])
def test_files_of_others_are_unproven_not_resident(call: str) -> None:
    """As user 65534, on a file of root: mincore would say "all resident" of an evicted file."""
    from tests.capabilities import need

    need("root")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        os.chmod(name, 0o755)
        path = write(Path(name), "roots", 1 << 20)
        path.chmod(0o644)
        page_cache.evict([path])
        code = (
            "import sys; sys.path.insert(0, sys.argv[2])\n"
            "import numpy, os\n"
            "from pathlib import Path\n"
            "from iobench.host import page_cache, residency\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "residency.CACHESTAT = int(sys.argv[3])\n"
            "found = page_cache.residency([Path(sys.argv[1])])\n"
            "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
            "print(found.fraction, '|', found.unproven, '|', residency.mincore(fd, 0, 256))\n"
        )
        number = residency.CACHESTAT if call == "cachestat" else 9999
        root = str(Path(__file__).parents[3])
        done = subprocess.run(
            [sys.executable, "-c", code, str(path), root, str(number)],
            capture_output=True,
            text=True,
            check=True,
        )
    fraction, why, lie = (part.strip() for part in done.stdout.split("|"))
    assert fraction == "None"
    assert "another user" in why
    assert lie == "256"  # what mincore says; the very reason for asking who owns the file


def test_a_filesystem_with_a_cache_of_its_own_is_unproven(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZFS's ARC: the page cache would say "not resident" of a file that is in memory."""
    path = write(disk, "x", 10 * PAGE)
    fd = os.open(path, os.O_RDONLY)
    number = residency.magic(fd)
    os.close(fd)
    assert number
    assert page_cache.residency([path]).fraction == 1.0
    monkeypatch.setitem(residency.OWN_CACHE, number, "zfs")
    found = page_cache.residency([path])
    assert found.fraction is None
    assert found.unproven == f"{path}: zfs caches outside the page cache"
    with pytest.raises(CacheStateError, match=r"cannot be proven.*zfs caches outside"):
        page_cache.set_fraction([[Extent(str(path), 0, PAGE)]], 0.5, 0)


def test_a_file_that_cannot_be_synced_is_evicted(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """squashfs before Linux 6.5: nothing tells that no page is dirty, and fdatasync is EINVAL."""

    def fdatasync(fd: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    path = write(disk, "x", 10 * PAGE)
    os.sync()
    monkeypatch.setattr(residency, "CACHESTAT", 9999)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    page_cache.evict([path])
    assert page_cache.residency([path]).fraction == 0.0


def test_a_file_that_cannot_be_read_is_named(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def preadv(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    path = write(disk, "x", 10 * PAGE)
    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(CacheStateError, match=r"cannot read .*/x \(Input/output error\)"):
        page_cache.warm([path])
    with pytest.raises(CacheStateError, match=r"cannot read .*/x \(Input/output error\)"):
        page_cache.set_fraction([[Extent(str(path), 0, 10 * PAGE)]], 1.0, 0)


def test_a_missing_file_is_named(disk: Path) -> None:
    for call in (page_cache.evict, page_cache.warm, page_cache.residency):
        with pytest.raises(CacheStateError, match="gone"):
            call([disk / "gone"])


def test_more_data_than_memory_cannot_be_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    page_cache.check_warmable(1 << 20)
    with pytest.raises(CacheStateError, match="cannot be warm"):
        page_cache.check_warmable(1 << 50)
    monkeypatch.setattr(page_cache.cgroups, "memory_limits_bytes", lambda: [1 << 20])
    assert page_cache.effective_memory_bytes() == 1 << 20
    with pytest.raises(CacheStateError, match="effective memory"):
        page_cache.check_warmable(2 << 20)


def test_what_is_locked_already_needs_no_more_memory(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locked pages do not count as available: the first arm's are the second one's too."""
    nbytes = 64 * PAGE
    path = write(disk, "x", nbytes)
    page_cache.warm([path])
    memory = {"MemTotal": 1 << 40, "MemAvailable": nbytes // 2, "Mlocked": nbytes}
    monkeypatch.setattr(page_cache, "_meminfo", memory.__getitem__)
    page_cache.check_warmable(nbytes, [path])
    page_cache.evict([path])
    memory["Mlocked"] = 0
    with pytest.raises(CacheStateError, match="other processes leave"):
        page_cache.check_warmable(nbytes, [path])


def test_drop_caches_needs_leave() -> None:
    with pytest.raises(CacheStateError, match="allow"):
        page_cache.drop_caches(allowed=False)


@pytest.mark.parametrize(
    ("spans", "pages"),
    [
        ([], []),
        ([(0, 0)], []),
        ([(0, 1)], [(0, 1)]),
        ([(PAGE - 1, 2)], [(0, 2)]),
        ([(5 * PAGE, PAGE), (0, PAGE)], [(0, 1), (5, 6)]),
        ([(0, 10 * PAGE), (PAGE, PAGE)], [(0, 10)]),
    ],
)
def test_page_spans(spans: list, pages: list) -> None:
    assert residency.page_spans(spans) == pages


UNHELD = {"unheld": "no right", "cold_bytes_per_s": 1000.0}


def proof(before: object, after: object, storage: object, **more: Any) -> CacheProof:
    return CacheProof(
        resident_before=before,  # type: ignore[arg-type]
        resident_after=after,  # type: ignore[arg-type]
        bytes_needed=1000,
        bytes_storage=storage,  # type: ignore[arg-type]
        **more,
    )


@pytest.mark.parametrize(
    ("cache", "evidence", "status", "word"),
    [
        ("cold", proof(0.0, 1.0, 1000), VALID, ""),
        ("cold", proof(0.001, 1.0, 980), VALID, ""),
        ("cold", proof(0.0011, 1.0, 1000), INVALID, "resident before"),
        ("cold", proof(0.0, 1.0, 979), INVALID, "crossed the mount"),
        ("cold", proof(None, 1.0, 1000), EXPLORATORY, "could not be proven"),
        ("cold", proof(0.0, 1.0, None), EXPLORATORY, "nothing here counts"),
        ("cold", proof(None, 1.0, 0), INVALID, "crossed the mount"),
        ("warm", proof(1.0, 1.0, 0), VALID, ""),
        ("warm", proof(0.999, 0.999, 10), VALID, ""),
        ("warm", proof(0.998, 1.0, 0), INVALID, "resident before"),
        ("warm", proof(1.0, 0.998, 0), INVALID, "resident after"),
        ("warm", proof(1.0, 1.0, 11), INVALID, "crossed the mount"),
        ("warm", proof(1.0, 1.0, None), EXPLORATORY, "nothing here counts"),
        ("warm", proof(1.0, None, 0), EXPLORATORY, "after the trial"),
        ("warm", proof(1.0, 1.0, 11, held=True), VALID, ""),  # programs' own pages
        ("warm", proof(1.0, 0.99, 0, held=True), INVALID, "resident after"),
        ("warm", proof(1.0, 0.99, 9, **UNHELD), VALID, ""),
        ("warm", proof(1.0, 0.99, 10, **UNHELD), EXPLORATORY, "10.0 ms at the rate of a cold"),
        ("warm", proof(1.0, 0.99, 11, **UNHELD), INVALID, "crossed the mount"),
        ("warm", proof(0.99, 1.0, 0, **UNHELD), INVALID, "resident before"),
        ("warm", proof(1.0, 0.99, None, **UNHELD), INVALID, "resident after"),
        ("0.35", proof(0.36, 1.0, 700), VALID, ""),
        ("0.35", proof(0.40, 1.0, 700), INVALID, "asked for"),
        ("0.35", proof(0.35, 1.0, 600), INVALID, "not cached"),
        ("0.35", proof(0.35, 1.0, None), EXPLORATORY, "nothing here counts"),
        ("-", CacheProof(), VALID, ""),
    ],
)
def test_judge(cache: str, evidence: CacheProof, status: str, word: str) -> None:
    got, reasons = judge(cache, "read", evidence, loop_s=3.0)
    assert got == status
    assert word in " ".join(reasons)
    assert bool(reasons) == (status != VALID)


def test_warm_data_that_are_not_locked_come_back_before_the_loop(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(os.urandom(1 << 20))
    trial = Trial("t", Case(), "load", "warm", slice_s=0.1)
    node = TrialNode("", LOCAL, trial, [file], tmp_path, TrialSettings(lock_pages=False))
    with contextlib.ExitStack() as held:
        node.set_state(list, held)
        LOCAL.evict([file])
        assert LOCAL.residency([file]).fraction == 0
        node.count()
    assert LOCAL.residency([file]).fraction == 1


def test_what_was_read_back_costs_nothing_where_no_time_is_taken() -> None:
    evidence = proof(1.0, 0.99, 10, **UNHELD)
    assert judge("warm", "probe", evidence, loop_s=0.0) == (VALID, ())
    status, reasons = judge("warm", "probe", proof(1.0, 0.99, 11, **UNHELD), loop_s=0.0)
    assert (status, len(reasons)) == (INVALID, 1)


def test_what_was_read_back_in_no_time_worth_naming_is_no_matter() -> None:
    evidence = proof(1.0, 0.99, 30, **UNHELD)  # 3 % of the bytes
    assert judge("warm", "load", evidence, loop_s=10.0) == (VALID, ())  # 30 ms, 0.3 %
    status, reasons = judge("warm", "load", evidence, loop_s=9.9)
    assert (status, len(reasons)) == (INVALID, 1)
    unknown = proof(1.0, 0.9999, 30, unheld="no right")  # no cold rate
    assert judge("warm", "load", unknown, loop_s=10.0)[0] == INVALID


@pytest.mark.parametrize("word", ["tepid", "1.5", "nan"])
def test_judge_refuses_other_words(word: str) -> None:
    with pytest.raises(CacheStateError, match="cold, warm"):
        judge(word, "read", CacheProof())
