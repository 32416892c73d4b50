"""tmpfs is never cold; a block device counts what really left it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from iobench.backends.filesystems import fuse, posix
from iobench.core import registry
from iobench.core.records import IoCounters
from iobench.host import filesystems, io_counters, mounts, page_cache
from iobench.host.mounts import MountInfo, mount_of
from tests.build import pages
from tests.capabilities import need


def test_tmpfs_is_refused_for_cold_and_its_files_stay() -> None:
    if mount_of(Path("/dev/shm")).fstype != "tmpfs":
        pytest.fail("/dev/shm is no tmpfs here")
    name, filesystem = filesystems.filesystem_for(Path("/dev/shm"))
    assert name == "tmpfs"
    assert "cannot be cold" in filesystem.cold()
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        page_cache.evict([Path(file.name)])
        assert page_cache.residency([Path(file.name)]).fraction == 1.0


def test_posix_counts_what_crossed_and_the_device_agrees() -> None:
    nbytes = 8 << 20
    with tempfile.NamedTemporaryFile(dir=Path(__file__).parent) as file:
        path = Path(file.name)
        file.write(os.urandom(nbytes))
        file.flush()
        _, filesystem = filesystems.filesystem_for(path)
        page_cache.evict([path])
        before, device = io_counters.snapshot(), dict(filesystem.counters(path))
        page_cache.warm([path])
        io = io_counters.difference(before, io_counters.snapshot())
        moved = filesystem.counters(path)["device_read_bytes"] - device["device_read_bytes"]
    count, counter, whole = filesystem.crossed(io, {})
    assert count is not None
    assert not whole  # our processes' alone
    assert nbytes <= count < 2 * nbytes
    assert "read_bytes" in counter
    assert moved >= nbytes  # everybody's reads
    assert filesystem.cold() == ""


def mount(fstype: str, device: str = "0:50", source: str = "tank/data") -> MountInfo:
    return MountInfo(device, "/data", ("rw",), fstype, source, ())


@pytest.mark.parametrize(("fstype", "cache"), [("zfs", "ARC"), ("gpfs", "pagepool")])
def test_a_filesystem_with_a_cache_of_its_own_is_not_cold(fstype: str, cache: str) -> None:
    found = filesystems.member_of(mount(fstype))
    assert cache in registry.load("filesystems", found).make(mount=mount(fstype)).cold()


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The partition loop0p1 of a loop device without direct I/O, as /sys shows it."""
    partition = tmp_path / "block" / "loop0" / "loop0p1"
    for folder in (partition, partition.parent / "loop", tmp_path / "dev"):
        folder.mkdir(parents=True)
    (partition / "partition").write_text("1\n")
    (partition.parent / "loop" / "dio").write_text("0\n")
    (tmp_path / "dev" / "259:0").symlink_to(partition)
    monkeypatch.setattr(mounts, "SYS_BLOCK", tmp_path / "dev")
    return tmp_path


def test_a_partition_of_a_loop_device_is_not_cold(devices: Path) -> None:
    found = posix.Posix(mount=mount("ext4", "259:0", "/dev/loop0p1"))
    assert "--direct-io=on" in found.cold()
    facts = found.describe(devices)
    assert (facts["block_device"], facts["loop"]) == ("loop0p1", True)


def test_nothing_counts_what_a_daemon_reads_below_fuseblk(devices: Path) -> None:
    """ntfs-3g: the mount has the disk's own number, and its reads are another process's."""
    io = IoCounters(read_bytes=5)
    assert posix.Posix(mount=mount("ext4", "259:0")).crossed(io, {}).nbytes == 5
    assert posix.Posix(mount=mount("fuseblk", "259:0")).crossed(io, {}).nbytes is None
    assert filesystems.member_of(mount("fuseblk", "259:0")) == "fuse"
    assert fuse.Fuse(mount=mount("fuseblk", "259:0")).crossed(io, {}).nbytes is None


@pytest.mark.slow
def test_a_loop_device_that_caches_twice_is_not_cold() -> None:
    need("loop")
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as name:
        image, point = Path(name, "image"), Path(name, "mount")
        point.mkdir()
        with image.open("wb") as file:
            file.truncate(16 << 20)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        attach = ["losetup", "--find", "--show", "--direct-io=off", str(image)]
        done = subprocess.run(attach, capture_output=True, text=True, check=True)
        loop = done.stdout.strip()
        try:
            subprocess.run(["mount", loop, str(point)], check=True)
            try:
                facts = filesystems.describe_mount(point)
                reason = filesystems.filesystem_for(point)[1].cold()
            finally:
                subprocess.run(["umount", str(point)], check=True)
        finally:
            subprocess.run(["losetup", "--detach", loop], check=True)
    assert facts["loop"] is True
    assert facts["loop_direct_io"] is False
    assert "--direct-io=on" in reason


@pytest.mark.slow
def test_an_overlay_is_counted_by_the_disk_below_it() -> None:
    need("root")
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as name:
        folders = {part: Path(name, part) for part in ("lower", "upper", "work", "merged")}
        for folder in folders.values():
            folder.mkdir()
        data = os.urandom(4 << 20)
        (folders["lower"] / "x").write_bytes(data)
        layers = ",".join(f"{key}dir={folders[key]}" for key in ("lower", "upper", "work"))
        merged = folders["merged"]
        command = ["mount", "-t", "overlay", "overlay", "-o", layers, str(merged)]
        subprocess.run(command, check=True)
        try:
            facts = filesystems.describe_mount(merged)
            _, filesystem = filesystems.filesystem_for(merged)
            path = merged / "x"
            page_cache.evict([path])
            cold = page_cache.residency([path]).fraction
            before = io_counters.snapshot()
            with pages.warm([path]):
                io = io_counters.difference(before, io_counters.snapshot())
                warm = page_cache.residency([path])
            count = filesystem.crossed(io, {}).nbytes
        finally:
            subprocess.run(["umount", str(merged)], check=True)
    assert facts["overlay"] is True
    assert facts["block_device"]
    assert cold == 0.0
    assert warm.fraction == 1.0
    assert warm.method == "mincore"  # cachestat sees the overlay's own mapping: always empty
    assert count is not None
    assert count >= len(data)


@pytest.mark.slow
def test_an_overlay_and_a_loop_on_tmpfs_are_memory() -> None:
    need("loop")
    with (
        tempfile.TemporaryDirectory(dir=Path(__file__).parent) as name,
        contextlib.ExitStack() as undo,
    ):

        def run(*words: object) -> str:
            done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=True)
            return done.stdout.strip()

        def attach(*words: object) -> None:
            run("mount", *words)
            undo.callback(run, "umount", words[-1])

        memory, upper, work, merged, disk = (Path(name, part) for part in "muwod")
        for folder in (memory, upper, work, merged, disk):
            folder.mkdir()
        attach("-t", "tmpfs", "tmpfs", memory)
        (memory / "x").write_text("x")
        layers = f"lowerdir={memory},upperdir={upper},workdir={work}"
        attach("-t", "overlay", "overlay", "-o", layers, merged)
        (merged / "y").write_text("y")
        os.truncate(memory / "x", 16 << 20)
        run("mkfs.ext4", "-q", memory / "x")
        loop = run("losetup", "--find", "--show", "--direct-io=on", memory / "x")
        undo.callback(run, "losetup", "--detach", loop)
        attach(loop, disk)
        words = {path: str(mounts.stack(path)) for path in (merged / "x", merged / "y", disk)}
        cold = {path: filesystems.filesystem_for(path)[1].cold() for path in words}
    for path in (merged / "x", disk):
        assert f"on tmpfs at {memory}" in words[path]
        assert "files are memory" in cold[path]
    assert "tmpfs" not in words[merged / "y"]
    assert cold[merged / "y"] == ""
