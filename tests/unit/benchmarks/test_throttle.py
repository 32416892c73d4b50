"""The throttled mount: slow below the page cache for those inside, and gone afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import throttle
from benchmarks.throttle import ThrottledMount, throttled
from iobench.core.errors import BackendUnavailable
from iobench.host import filesystems, io_counters, page_cache
from tests.build import pages
from tests.capabilities import need

pytestmark = pytest.mark.slow
NBYTES = 4 << 20


@pytest.fixture(autouse=True)
def _needs() -> None:
    need("loop")
    need("blkio")


def data_on(mount: ThrottledMount) -> Path:
    path = mount.path / "data"
    path.write_bytes(os.urandom(NBYTES))
    return path


def serviced(mount: ThrottledMount) -> int:
    """Bytes that the slow group read from the device, as the kernel's throttle counted them."""
    for line in (mount.group / "blkio.throttle.io_service_bytes").read_text().splitlines():
        words = line.split()
        if words[:2] == [mount.device, "Read"]:
            return int(words[2])
    return 0


def read_in(mount: ThrottledMount, path: Path) -> None:
    code = f"open({str(path)!r}, 'rb').read()"
    subprocess.run(mount.enter([sys.executable, "-c", code]), check=True)


def test_reads_of_a_child_inside_are_throttled_and_cached_ones_are_free() -> None:
    with throttled(32 << 20, read_bps=100_000_000) as mount:
        path = data_on(mount)
        knob = (mount.group / "blkio.throttle.read_bps_device").read_text().split()
        assert knob == [mount.device, "100000000"]
        page_cache.evict([path])
        assert page_cache.residency([path]).fraction == 0.0
        read_in(mount, path)
        assert serviced(mount) >= NBYTES
        with pages.warm([path]):
            before = serviced(mount)
            read_in(mount, path)
            assert serviced(mount) == before
        page_cache.evict([path])
        io = io_counters.snapshot()
        path.read_bytes()  # outside the group
        assert io_counters.difference(io, io_counters.snapshot()).read_bytes >= NBYTES
        assert serviced(mount) == before


def test_the_limit_can_change_and_be_taken_away() -> None:
    with throttled(16 << 20) as mount:
        bps = mount.group / "blkio.throttle.read_bps_device"
        iops = mount.group / "blkio.throttle.read_iops_device"
        assert bps.read_text() == ""
        mount.limit(read_bps=5_000_000, read_iops=100)
        assert bps.read_text().split() == [mount.device, "5000000"]
        assert iops.read_text().split() == [mount.device, "100"]
        mount.limit(read_iops=50)
        assert bps.read_text() == ""
        assert iops.read_text().split() == [mount.device, "50"]


def test_it_is_described_as_what_it_is_and_may_be_cold() -> None:
    with throttled(16 << 20) as mount:
        facts = filesystems.describe_mount(mount.path)
        assert facts["filesystem"] == "posix"
        assert facts["loop_direct_io"] is True
        assert facts["device"] == mount.device
        assert filesystems.filesystem_for(mount.path)[1].cold() == ""


def test_arguments_reach_the_command_unchanged() -> None:
    with throttled(16 << 20) as mount:
        words = ["a b", "$HOME", "'\"", "*"]
        argv = mount.enter([sys.executable, "-c", "import sys; print(sys.argv[1:])", *words])
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(words)


@pytest.mark.parametrize("fail", [False, True])
def test_nothing_is_left_behind(fail: bool) -> None:
    seen = []
    try:
        with throttled(16 << 20, read_bps=1_000_000) as mount:
            seen.append(mount)
            sleeper = subprocess.Popen(mount.enter(["sleep", "60"]))
            while not (mount.group / "cgroup.procs").read_text():
                assert sleeper.poll() is None
            if fail:
                raise RuntimeError("the benchmark broke")
    except RuntimeError:
        assert fail
    (mount,) = seen
    assert not mount.path.parent.exists()
    assert not mount.group.exists()
    assert not Path("/sys/class/block", Path(mount.loop).name, "loop").exists()
    assert str(mount.path) not in Path("/proc/mounts").read_text()
    assert sleeper.poll() is None  # moved out of the group, not killed
    sleeper.kill()
    sleeper.wait()


def test_a_set_up_that_fails_half_way_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = sorted(Path("/sys/class/block").glob("loop*/loop"))
    monkeypatch.setattr(throttle, "V1", Path("/sys/fs/cgroup/blkio/absent/absent"))
    monkeypatch.setattr(throttle, "_version", lambda: 1)
    with pytest.raises(FileNotFoundError), throttled(16 << 20):
        pytest.fail("it must not get here")
    assert sorted(Path("/sys/class/block").glob("loop*/loop")) == loops


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(BackendUnavailable, match="root"), throttled(16 << 20):
        pytest.fail("it must not get here")
