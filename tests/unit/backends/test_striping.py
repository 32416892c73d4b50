"""How a filesystem is told to spread files: the commands, as they are documented, and the answers.

Sources: lfs-setstripe(1); doc.beegfs.io, "Striping"; docs.ceph.com, "File layouts".
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, List

import pytest

from iobench.backends.filesystems import beegfs, cephfs, glusterfs, lustre, posix
from iobench.core.errors import DatasetError, SpecError
from iobench.core.protocols import Filesystem
from iobench.core.striping import ALL, Striping, striping
from iobench.host.mounts import MountInfo
from iobench.host.striping import stripe
from tests.build import lustre as shown

OUTPUTS = Path(__file__).parent / "filesystem_outputs"
WANTED = Striping(4, 1 << 20, "flash")


def mounted(member: type[Filesystem], fstype: str) -> Filesystem:
    return member(mount=MountInfo("0:99", "/nowhere", ("rw",), fstype, "a:/b", ("rw",)))  # type: ignore[call-arg]


def recorder(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, answer: str = "") -> Path:
    """Put a program on the path that notes its arguments, one a line; return the note."""
    note = folder / f"{name}.arguments"
    program = folder / name
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {note}\ncat {answer or "/dev/null"}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return note


@pytest.mark.parametrize(
    ("wanted", "options"),
    [
        (WANTED, ["-c", "4", "-S", "1048576", "-p", "flash"]),
        (Striping(count=ALL), ["-c", "-1"]),
        (Striping(bytes=65536), ["-S", "65536"]),
    ],
)
def test_lustre_sets_the_layout_of_a_folder(
    wanted: Striping, options: List[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = recorder(tmp_path, "lfs", monkeypatch)
    mounted(lustre.Lustre, "lustre").stripe(tmp_path, wanted)
    assert note.read_text().split("\n")[:-1] == ["setstripe", *options, str(tmp_path)]


def test_lustre_reads_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = str(OUTPUTS / "lustre.getstripe-folder.yaml")
    note = recorder(tmp_path, "lfs", monkeypatch, answer)
    assert mounted(lustre.Lustre, "lustre").striping(tmp_path) == WANTED
    assert note.read_text().split("\n")[:-1] == ["getstripe", "-y", "-d", str(tmp_path)]


def test_lustre_says_why_it_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown.programs(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    with pytest.raises(DatasetError, match="cannot access pool"):
        mounted(lustre.Lustre, "lustre").stripe(tmp_path, Striping(pool="none"))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("beegfs-ctl", ["--setpattern", "--numtargets=4", "--chunksize=1024k"]),
        ("beegfs", ["entry", "set", "--num-targets=4", "--chunk-size=1024KiB"]),
    ],
)
def test_beegfs_sets_the_pattern_of_a_folder(
    program: str, words: List[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = recorder(tmp_path, program, monkeypatch)
    mounted(beegfs.Beegfs, "beegfs").stripe(tmp_path, Striping(4, 1 << 20))
    assert note.read_text().split("\n")[:-1] == [*words, str(tmp_path)]


def test_beegfs_takes_a_pool_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = recorder(tmp_path, "beegfs-ctl", monkeypatch, str(OUTPUTS / "beegfs-7.entryinfo-folder"))
    mount = mounted(beegfs.Beegfs, "beegfs")
    mount.stripe(tmp_path, Striping(pool="1"))
    assert "--storagepoolid=1" in note.read_text()
    assert mount.striping(tmp_path) == Striping(8, 512 << 10, "1")
    for wrong in (Striping(count=ALL), Striping(bytes=1000)):
        with pytest.raises(DatasetError):
            mount.stripe(tmp_path, wrong)


def test_ceph_sets_the_layout_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: Dict[str, bytes] = {}
    monkeypatch.setattr(os, "setxattr", lambda path, name, value: found.update({name: value}))
    mount = mounted(cephfs.Cephfs, "ceph")
    mount.stripe(tmp_path, Striping(2, 8 << 20, "cephfs.data"))
    assert list(found.items()) == [
        ("ceph.dir.layout.pool", b"cephfs.data"),
        ("ceph.dir.layout.object_size", b"8388608"),
        ("ceph.dir.layout.stripe_unit", b"8388608"),
        ("ceph.dir.layout.stripe_count", b"2"),
    ]
    text = b"stripe_unit=8388608 stripe_count=2 object_size=8388608 pool=cephfs.data"
    layouts = {"ceph.dir.layout": text}

    def getxattr(path: Path, name: str) -> bytes:
        if name not in layouts:
            raise OSError(61, "No data available")
        return layouts[name]

    monkeypatch.setattr(os, "getxattr", getxattr)
    assert mount.striping(tmp_path) == Striping(2, 8 << 20, "cephfs.data")


def test_gluster_keeps_whole_files(tmp_path: Path) -> None:
    mount = mounted(glusterfs.Glusterfs, "fuse.glusterfs")
    for wanted in (Striping(bytes=1 << 20), Striping(pool="a"), Striping(count=ALL)):
        with pytest.raises(DatasetError, match="subvols-per-directory"):
            mount.stripe(tmp_path, wanted)
    text = "((<DISTRIBUTE:v-dht> <POSIX(/b0):h:/b0/d>) (v-dht-layout (v-client-0 0 0) "
    assert glusterfs.spread(f"{text}(v-client-1 0 4294967295)))") == 1
    assert glusterfs.spread("") == 0


def test_a_disk_refuses_with_one_line_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"striping \(count = 2\) is not possible on \w+ at /"):
        stripe(tmp_path, {"count": 2})
    stripe(tmp_path, {"count": 0})  # as it is
    assert mounted(posix.Posix, "ext4").striping(tmp_path) == Striping()


@pytest.mark.parametrize(
    ("wanted", "found", "met"),
    [
        (Striping(2), Striping(2, 5, "p"), True),
        (Striping(2, 5), Striping(2, 6), False),
        (Striping(pool="p"), Striping(2), False),
        (Striping(), Striping(3), True),
    ],
)
def test_only_what_was_asked_for_must_be_so(wanted: Striping, found: Striping, met: bool) -> None:
    assert wanted.met_by(found) is met


def test_a_pool_is_a_name() -> None:
    assert striping(pool="cephfs.a-1_b").pool == "cephfs.a-1_b"
    with pytest.raises(SpecError, match="letters, digits"):
        striping(pool="../x")
