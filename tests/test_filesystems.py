"""tmpfs is never cold; a block device counts what really left it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from iobench import iocount, mounts, pagecache
from iobench.mountinfo import mount_of
from tests.capabilities import need


def test_tmpfs_is_refused_for_cold_and_its_files_stay() -> None:
    if mount_of(Path("/dev/shm")).fstype != "tmpfs":
        pytest.fail("/dev/shm is no tmpfs here")
    name, filesystem = mounts.filesystem_for(Path("/dev/shm"))
    assert name == "tmpfs"
    assert "cannot be cold" in filesystem.cold()
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        pagecache.evict([Path(file.name)])
        assert pagecache.residency([Path(file.name)]).fraction == 1.0


def test_posix_counts_what_crossed_and_the_device_agrees() -> None:
    nbytes = 8 << 20
    with tempfile.NamedTemporaryFile(dir=Path(__file__).parent) as file:
        path = Path(file.name)
        file.write(os.urandom(nbytes))
        file.flush()
        _, filesystem = mounts.filesystem_for(path)
        pagecache.evict([path])
        before, device = iocount.snapshot(), dict(filesystem.counters(path))
        pagecache.warm([path])
        io = iocount.difference(before, iocount.snapshot())
        moved = filesystem.counters(path)["device_read_bytes"] - device["device_read_bytes"]
    count, counter = filesystem.storage_bytes(io)
    assert count is not None
    assert nbytes <= count < 2 * nbytes
    assert "read_bytes" in counter
    assert moved >= nbytes  # everybody's reads
    assert filesystem.cold() == ""


@pytest.mark.system
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
                facts = mounts.describe_mount(point)
                reason = mounts.filesystem_for(point)[1].cold()
            finally:
                subprocess.run(["umount", str(point)], check=True)
        finally:
            subprocess.run(["losetup", "--detach", loop], check=True)
    assert facts["loop"] is True
    assert facts["loop_direct_io"] is False
    assert "--direct-io=on" in reason


@pytest.mark.system
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
        mount = ["mount", "-t", "overlay", "overlay", "-o", layers, str(merged)]
        subprocess.run(mount, check=True)
        try:
            facts = mounts.describe_mount(merged)
            _, filesystem = mounts.filesystem_for(merged)
            path = merged / "x"
            pagecache.evict([path])
            cold = pagecache.residency([path]).fraction
            before = iocount.snapshot()
            pagecache.warm([path])
            io = iocount.difference(before, iocount.snapshot())
            warm = pagecache.residency([path])
            count, _ = filesystem.storage_bytes(io)
        finally:
            subprocess.run(["umount", str(merged)], check=True)
    assert facts["overlay"] is True
    assert facts["block_device"]
    assert cold == 0.0
    assert warm.fraction == 1.0
    assert warm.method == "mincore"  # cachestat sees the overlay's own mapping: always empty
    assert count is not None
    assert count >= len(data)
