"""One lock: between real processes, on ext4 or what /tmp is, and through FUSE."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from iobench.core.errors import DatasetError
from iobench.host import files, lock_waits, locks, mounts
from tests.build import fuse

HOLD = """
import sys
from pathlib import Path
from iobench.core.errors import DatasetError
from iobench.host import locks
with locks.held(Path(sys.argv[1]), DatasetError, alone=sys.argv[2] == "alone"):
    print("held", flush=True)
    sys.stdin.read()
"""
FAR = locks.Holder("node99", 4321, "77", "2026-01-01T00:00:00+00:00", "iobench run", "b0", "9")


@pytest.fixture(params=["here", "fuse"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "here":
        yield tmp_path
        return
    with fuse.mounted(tmp_path) as mount:
        yield mount.path


@contextlib.contextmanager
def holder(folder: Path, how: str = "alone") -> Iterator[subprocess.Popen[str]]:
    """Have another process hold the folder."""
    words = [sys.executable, "-c", HOLD, str(folder), how]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, stdin=pipe, stdout=pipe, text=True, env={**os.environ, "SLURM_JOB_ID": "12"}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        if process.poll() is None:
            process.communicate()


def refused(folder: Path, *, alone: bool = True) -> str:
    with pytest.raises(DatasetError) as error, locks.held(folder, DatasetError, alone=alone):
        pass
    return str(error.value)


def taken(folder: Path, *, alone: bool = True) -> list[locks.Holder]:
    with locks.held(folder, DatasetError, alone=alone) as others:
        return others


def named(folder: Path, *holders: locks.Holder) -> None:
    """Leave names that nobody's lock backs."""
    texts = (json.dumps(dataclasses.asdict(h)).ljust(locks.SLOT) for h in holders)
    (folder / locks.NAME).write_text("".join(texts))


def test_who_holds_it_is_named_and_a_killed_process_holds_nothing(folder: Path) -> None:
    with holder(folder) as other:
        who = refused(folder)
        assert re.match(rf"`-c .*` on host \S+, pid {other.pid}, job 12, since 20\d\d-", who)
        assert refused(folder, alone=False) == who
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert str(other.pid) in (folder / locks.NAME).read_text()
        assert taken(folder) == []
    assert (folder / locks.NAME).read_text() == ""


def test_those_who_are_not_alone_are_together_and_keep_writers_out(folder: Path) -> None:
    with holder(folder, "beside") as one, holder(folder, "beside") as other:
        assert [h.pid for h in taken(folder, alone=False)] == [one.pid, other.pid]
        assert f"pid {one.pid}" in refused(folder)
        one.kill()
        one.wait()
        assert [h.pid for h in taken(folder, alone=False)] == [other.pid]
        assert f"pid {other.pid}" in refused(folder)
    assert taken(folder) == []


def test_a_process_does_not_take_a_lock_twice(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with files.hold(tmp_path), pytest.raises(DatasetError, match=f"pid {os.getpid()}"):
        files.hold(tmp_path / "link").__enter__()
    assert taken(tmp_path) == []


def test_a_name_from_another_node_counts_where_its_lock_may_not_be_seen(folder: Path) -> None:
    """A FUSE filesystem does not say whether its locks are only this node's."""
    named(folder, FAR)
    if not locks.reach(folder):
        assert taken(folder) == []
        return
    for alone in (True, False):
        who = refused(folder, alone=alone)
        assert "`iobench run` on host node99, pid 4321, job 77" in who
        assert "is not known" in who
        assert "remove that file" in who
        assert str(folder / locks.NAME) in who
    named(folder, dataclasses.replace(FAR, alone=False))
    assert [h.host for h in taken(folder, alone=False)] == ["node99"]
    assert "node99" in refused(folder)
    (folder / locks.NAME).unlink()
    assert taken(folder) == []


def test_without_any_locks_names_are_all_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lustre without -o flock, NFS whose lock daemon is gone."""

    def lockf(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with holder(tmp_path) as other:
        assert f"pid {other.pid}" in refused(tmp_path)
        other.kill()
        other.wait()
        assert taken(tmp_path) == []
    named(tmp_path, FAR)
    assert "No locks available, so that its end may not be seen here" in refused(tmp_path)
    notice = locks.notice(tmp_path)
    assert re.match(r"locks do not work in .* cannot be locked \(No locks.* from two nodes", notice)


@pytest.mark.parametrize("text", ["", "\0" * 3000, "{", "[]", '{"host": 1}', "\ud800" * 9])
def test_what_is_no_name_holds_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / locks.NAME).write_bytes(text.encode(errors="surrogatepass"))
    assert taken(tmp_path) == []


def test_a_long_command_leaves_a_whole_name_and_no_name_acts_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["iobench", "run", "\U0001f600" * 500])
    monkeypatch.setenv("PBS_JOBID", "9" * 500)
    with files.hold(tmp_path):
        written = locks.Holder(**json.loads((tmp_path / locks.NAME).read_text()))
        assert written.pid == os.getpid()
    evil = dataclasses.replace(FAR, command="\x1b[2J\x07\nrm")
    assert str(evil).startswith("`\\x1b[2J\\x07 rm` on host node99")


def test_a_link_in_the_lock_s_place_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / locks.NAME).symlink_to(victim)
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / locks.NAME).symlink_to(tmp_path / "made")
    for folder in (inner, tmp_path / "gone"):
        with pytest.raises(OSError, match="symbolic"):
            files.hold(folder).__enter__()
    assert victim.read_text() == "kept"
    assert not (tmp_path / "made").exists()


def test_who_may_write_a_folder_may_lock_it(tmp_path: Path) -> None:
    for mode, wanted in ((0o755, 0o644), (0o2775, 0o664), (0o777, 0o666), (0o700, 0o600)):
        tmp_path.chmod(mode)
        taken(tmp_path)
        assert (tmp_path / locks.NAME).stat().st_mode & 0o777 == wanted


MOUNTS: list[tuple[str, str, str]] = [
    ("ext4", "rw,relatime", ""),
    ("tmpfs", "rw", ""),
    ("lustre", "rw,flock,lazystatfs", ""),
    ("lustre", "rw,localflock", "localflock"),
    ("lustre", "rw,noflock", "noflock"),
    ("lustre", "rw,lazystatfs", "not mounted with flock"),
    ("nfs", "rw,vers=3,local_lock=none", ""),
    ("nfs", "rw,vers=3,nolock,local_lock=all", "local_lock=all"),
    ("nfs4", "rw,vers=4.2,local_lock=none", ""),
    ("nfs4", "rw,local_lock=posix", "local_lock=posix"),
    ("gpfs", "rw", ""),
    ("ceph", "rw", ""),
    ("fuse.glusterfs", "rw", ""),
    ("beegfs", "rw", "tuneUseGlobalFileLocks"),
    ("fuse.sshfs", "rw", "not known"),
    ("9p", "rw", "not known"),
]


@pytest.mark.parametrize(("kind", "options", "word"), MOUNTS)
def test_what_is_known_of_a_mount_s_locks(
    kind: str, options: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"30 22 0:40 / / rw shared:2 - {kind} server:/x {options}\n")
    monkeypatch.setattr(mounts, "MOUNTINFO", table)
    found = locks.reach(tmp_path)
    assert (word in found) if word else not found
    assert bool(locks.notice(tmp_path)) == bool(word)


@pytest.mark.parametrize("value", ["0", "1"])
def test_beegfs_says_in_proc_whether_its_locks_hold(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("30 22 0:40 / / rw shared:2 - beegfs beegfs_nodev rw\n")
    config = tmp_path / "proc" / "3A-1" / "config"
    config.parent.mkdir(parents=True)
    config.write_text(f"logLevel = 3\ntuneUseGlobalFileLocks = {value}\n")
    monkeypatch.setattr(mounts, "MOUNTINFO", table)
    monkeypatch.setattr(locks, "_BEEGFS", tmp_path / "proc")
    assert bool(locks.reach(tmp_path)) == (value == "0")


def test_locks_are_tried_between_two_processes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert locks.broken(folder) == ""
    assert [p.name for p in folder.iterdir() if "lock-" in p.name] == []
    monkeypatch.setattr(fcntl, "lockf", lambda *_: None)  # as where each has its own lock
    assert locks.broken(folder) == "two processes had one lock there"


def test_whether_a_lock_is_shared_with_those_who_wait_is_tried(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert locks.unshared(folder, waiting=3) == ""
    real = fcntl.lockf

    def keeps(fd: int, how: int) -> None:  # as where those who wait are not woken
        if how != fcntl.LOCK_SH | fcntl.LOCK_NB:
            real(fd, how)

    monkeypatch.setattr(fcntl, "lockf", keeps)
    why = locks.unshared(folder, waiting=3, wait_s=0.2)
    assert why == "3 of 3 that waited for it did not get it"
    assert [p.name for p in folder.iterdir() if "lock-" in p.name] == []
    assert lock_waits.waited_for(os.getpid()) == {}  # who waited has been ended


@pytest.mark.parametrize("path", ["/x/iobench/cli/__main__.py", "iobench.cli", "/y/bin/iobench"])
def test_a_command_is_told_in_one_line(path: str) -> None:
    assert locks.command([path, "run", "a\nb.toml"]) == "iobench run 'a b.toml'"
    assert locks.command([]) == "''"
