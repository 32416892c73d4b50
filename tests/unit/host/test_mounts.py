"""Mount detection: real mounts, and the documents of machines that are not this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.host import filesystems
from iobench.host.mounts import mount_of, parse, same_mount

LINES = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 0:40 / /scratch rw,noatime shared:2 master:7 - lustre 10.0.0.1@o2ib:/scratch rw,flock
31 22 0:41 / /scratch/with\040space rw - fuse.sshfs user@host:/data\043x rw,user_id=0
32 22 0:42 / /data rw - tmpfs first rw
33 22 0:43 / /data ro,nosuid - nfs4 server:/data rw,vers=4.2
34 22 0:44 /sub /data2 rw - nfs4 server:/data rw,vers=4.2
35 22 0:50 / /var/lib/overlay rw - overlay overlay rw,lowerdir=/a:/b,upperdir=/c,workdir=/d
"""


@pytest.mark.parametrize(
    ("path", "fstype", "point"),
    [
        ("/etc/passwd", "ext4", "/"),
        ("/scratch", "lustre", "/scratch"),
        ("/scratch/me/set", "lustre", "/scratch"),
        ("/scratchy/me", "ext4", "/"),
        ("/scratch/with space/x", "fuse.sshfs", "/scratch/with space"),
        ("/data/x", "nfs4", "/data"),  # the later mount hides the earlier one
    ],
)
def test_the_longest_and_last_mount_wins(path: str, fstype: str, point: str) -> None:
    mount = mount_of(Path(path), parse(LINES))
    assert (mount.fstype, mount.mount_point) == (fstype, point)


def test_escapes_and_optional_fields_are_read() -> None:
    mounts_ = parse(LINES)
    assert mounts_[2].source == "user@host:/data#x"
    assert mounts_[1].device == "0:40"
    assert mounts_[1].super_options == ("rw", "flock")
    assert mounts_[6].option("upperdir") == "/c"
    assert mounts_[6].option("nothing") is None


def test_no_mount_at_all_is_unknown_not_a_crash() -> None:
    assert mount_of(Path("/x"), []).fstype == "unknown"


def test_real_mounts() -> None:
    assert mount_of(Path("/proc/self")).fstype == "proc"
    assert mount_of(Path("/")).mount_point == "/"
    here = Path(__file__)
    assert same_mount(here, here.parent / "absent" / "file")
    assert not same_mount(here, Path("/proc"))


def test_an_unknown_filesystem_falls_back_and_counts_nothing() -> None:
    name, filesystem = filesystems.filesystem_for(Path("/proc"))
    assert name == "posix"
    from iobench.core.records import IoCounters

    crossed = filesystem.crossed(IoCounters(read_bytes=5), {})
    assert (crossed.nbytes, crossed.counter) == (None, "proc at /proc counts none for a process")
    assert filesystem.counters(Path("/proc")) == {}


def test_describe_names_member_and_mount() -> None:
    facts = filesystems.describe_mount(Path(__file__))
    assert facts["filesystem"] in ("posix", "tmpfs")
    assert facts["mount_point"] == mount_of(Path(__file__)).mount_point
    assert all(isinstance(v, (str, int, float, bool, type(None))) for v in facts.values())
