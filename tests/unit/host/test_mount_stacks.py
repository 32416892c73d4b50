"""Stacks of mounts: what is said of one is true of every layer that holds the data."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iobench.advise import machine
from iobench.backends.filesystems import _fuse, _network
from iobench.core.records import IoCounters
from iobench.host import filesystems, mounts
from iobench.host.mounts import MountInfo
from iobench.host.page_cache import Residency

#: Kinds of mounts that hold bytes: fstype -> (its device number, its source).
LEAVES = {
    "ext4": ("259:0", "/dev/disk0"), "xfs": ("259:1", "/dev/disk1"), "tmpfs": ("0:70", "tmpfs"),
    "nfs4": ("0:71", "server:/x"), "lustre": ("0:72", "mgs@tcp:/x"),
    "fuse.glusterfs": ("0:73", "node:/vol"), "fuse.sshfs": ("0:74", "user@node:"),
    "squashfs": ("259:2", "/dev/disk2"),
}  # fmt: skip
COUNTED = {"ext4", "xfs"}
#: A scratch file as the kernel shows it before and after it is evicted.
WARM, COLD = (Residency(256, pages, "cachestat") for pages in (256, 0))


class Stack(NamedTuple):
    """A mount to be made: its kind, and the layers that it stands on (first the uppermost)."""

    kind: str
    layers: List[Stack]
    holds: List[bool]  # whether a layer holds the data


def leaves(stack: Stack, *, file: bool = False) -> List[str]:
    """Return the kinds of the mounts that hold the data, by the way the stack was made.

    ``file``: of one file, which all layers have that hold data, and the uppermost shows.
    """
    if stack.kind in LEAVES:
        return [stack.kind]
    held = [layer for layer, holds in zip(stack.layers, stack.holds) if holds]
    if stack.kind == "loop":
        return ["loop", *leaves(held[0], file=True)]
    return [kind for layer in held[: 1 if file else None] for kind in leaves(layer, file=file)]


def overlays(inner: st.SearchStrategy[Stack]) -> st.SearchStrategy[Stack]:
    layers = st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3)
    some = layers.filter(lambda found: any(holds for _, holds in found))
    return some.map(lambda found: Stack("overlay", *map(list, zip(*found))))


def loops(inner: st.SearchStrategy[Stack]) -> st.SearchStrategy[Stack]:
    return inner.map(lambda below: Stack("loop", [below], [True]))


STACKS = st.recursive(
    st.sampled_from(sorted(LEAVES)).map(lambda kind: Stack(kind, [], [])),
    lambda inner: overlays(inner) | loops(inner),
    max_leaves=4,
)


class Machine:
    """A mount table over folders and a /sys, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.blocks = folder, folder / "sys"
        self.lines: List[str] = []
        self.layers: Dict[Path, List[Path]] = {}
        for device in ("259:0", "259:1", "259:2"):
            self._disk(device)

    def _disk(self, device: str, backing: str = "") -> None:
        disk = self.blocks / device
        disk.mkdir(parents=True)
        (disk / "stat").write_text("1 0 8 0\n")
        if backing:
            (disk / "loop").mkdir()
            (disk / "loop" / "backing_file").write_text(f"{backing}\n")
            (disk / "loop" / "dio").write_text("1\n")

    def _file(self, point: Path) -> Path:
        for layer in self.layers.get(point, ()):
            if (layer / "set").exists():
                self._file(layer)
        (point / "set" / "image").write_text("")
        return point / "set" / "image"

    def make(self, stack: Stack, *, data: bool = True) -> Path:
        """Mount a stack, with the folder ``set`` in it where it holds the data; return where."""
        point = self.folder / f"m{len(self.lines)}"
        point.mkdir()
        self.lines.append("")
        at, options = len(self.lines) - 1, "rw"
        device, source = LEAVES.get(stack.kind, (f"0:{100 + at}", "overlay"))
        fstype = stack.kind
        if stack.kind == "overlay":
            below = [self.make(s, data=data and h) for s, h in zip(stack.layers, stack.holds)]
            self.layers[point] = below
            options += f",lowerdir={':'.join(map(str, below))}"
        elif stack.kind == "loop":
            file = self._file(self.make(stack.layers[0]))
            device, source, fstype = f"7:{at}", f"/dev/loop{at}", "ext4"
            self._disk(device, str(file))
        if data:
            (point / "set").mkdir()
        self.lines[at] = f"{at} 1 {device} / {point} rw - {fstype} {source} {options}"
        return point

    def table(self) -> Path:
        table = self.folder / "mountinfo"
        table.write_text("\n".join(["1 0 0:9 / / rw - rootfs rootfs rw", *self.lines]))
        return table


@pytest.fixture(scope="module")
def folder() -> Iterator[Callable[[], Path]]:
    with tempfile.TemporaryDirectory() as name:
        yield lambda: Path(tempfile.mkdtemp(dir=name)).resolve()


@pytest.mark.breadth
@settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)  # fmt: skip
@given(stack=STACKS)
def test_what_is_said_of_a_stack_holds_for_every_layer(
    stack: Stack, folder: Callable[[], Path]
) -> None:
    made = Machine(folder())
    path = made.make(stack) / "set"
    kinds = leaves(stack)
    with (
        mock.patch.object(mounts, "MOUNTINFO", made.table()),
        mock.patch.object(mounts, "SYS_BLOCK", made.blocks),
        mock.patch.object(_network, "SYS_NET", made.folder / "none"),
        mock.patch.object(_network, "SYS_INFINIBAND", made.folder / "none"),
        mock.patch.object(machine, "_tried", return_value=(WARM, COLD)),
    ):
        words = str(mounts.stack(path))
        _, filesystem = filesystems.filesystem_for(path)
        count, counter, _ = filesystem.crossed(IoCounters(read_bytes=5), {})
        cold, daemons = filesystem.cold(), filesystems.unseen(path)
        checks = {check.name: check for check in machine._storage(path)}
    for kind in kinds:
        assert f"{'ext4' if kind == 'loop' else kind} at " in words
    assert str(made.folder) in words
    if count is not None:
        # below a loop device anything may be: what crosses is counted at the device itself
        seen = kinds[: kinds.index("loop")] if "loop" in kinds else kinds
        assert set(seen) <= {*COUNTED, "tmpfs"}
        assert counter
    assert checks["byte counter"].ok == (count is not None)
    if "tmpfs" in kinds:
        assert "memory" in cold
        assert not checks["cold"].ok
    fuses = {kind for kind in kinds if kind.startswith("fuse")}
    assert all(kind in daemons for kind in fuses)
    assert bool(daemons) == bool(fuses)
    assert checks["cold"].ok == (not cold and not fuses)
    assert checks["mount"].detail.startswith(words)


def overlay(options: str) -> MountInfo:
    line = f"9 1 0:50 / /merged rw - overlay overlay rw,{options}"
    return mounts.parse(line)[0]


@pytest.mark.parametrize("options", ["lowerdir=/gone:/tmp", "lowerdir=l/A:l/B", "xino=off"])
def test_layers_that_are_not_seen_are_not_guessed(options: str) -> None:
    found = mounts.stack(Path("/merged/x"), [overlay(options)])
    assert not found.below
    assert "not all seen" in str(found)
    count, why, _ = filesystems.filesystem_of(found)[1].crossed(IoCounters(read_bytes=5), {})
    assert count is None
    assert "not all seen" in why


def test_a_daemon_whose_own_reads_are_counted_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(mounts, "MOUNTINFO", table)
    table.write_text(f"1 0 0:74 / {tmp_path} rw - fuse.sshfs user@node: rw\n")
    words = f"the daemon of fuse.sshfs at {tmp_path}"
    for pid, unseen in ((os.getpid(), ""), (None, words)):
        monkeypatch.setattr(_fuse, "daemon_of", lambda mount, pid=pid: pid)
        assert filesystems.unseen(tmp_path / "x") == unseen
    table.write_text(f"1 0 0:74 / {tmp_path} rw - fuse.unheard-of it rw\n")
    assert filesystems.unseen(tmp_path) == f"the daemon of fuse.unheard-of at {tmp_path}"


def test_what_lies_below_a_loop_device_has_to_be_crossed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a disk in a file on a counted mount the lower number is taken; uncounted, none."""
    made = Machine(tmp_path)
    path = made.make(Stack("loop", [Stack("fuse.sshfs", [], [])], [True])) / "set"
    monkeypatch.setattr(mounts, "MOUNTINFO", made.table())
    monkeypatch.setattr(mounts, "SYS_BLOCK", made.blocks)
    monkeypatch.setattr(_fuse, "daemon_of", lambda mount: os.getpid())
    name, filesystem = filesystems.filesystem_for(path)
    (counter,) = (c for c in filesystem.counters(path) if c.startswith("layer0."))
    below, top = ({counter: n} for n in (3, 7))
    assert name == "sshfs"
    assert filesystem.crossed(IoCounters(read_bytes=5), below)[::2] == (3, True)
    assert filesystem.crossed(IoCounters(read_bytes=5), top)[::2] == (5, False)
    assert filesystem.crossed(IoCounters(read_bytes=5), {}).nbytes is None


def test_a_file_is_on_the_uppermost_layer_that_has_it(tmp_path: Path) -> None:
    for name in ("upper", "lower", "merged"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("x")
    (tmp_path / "lower" / "y").write_text("y")
    (tmp_path / "merged" / "y").write_text("y")
    table = mounts.parse(
        f"1 0 259:0 / / rw - ext4 /dev/x rw\n2 1 0:60 / {tmp_path}/lower rw - tmpfs t rw\n"
        f"3 1 0:61 / {tmp_path}/merged rw - overlay o "
        f"rw,lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper"
    )
    kinds = {
        name: [m.fstype for m in mounts.stack(tmp_path / "merged" / name, table).below]
        for name in ("x", "y", "")
    }
    assert kinds == {"x": ["ext4"], "y": ["tmpfs"], "": ["ext4", "tmpfs"]}


def test_a_loop_device_whose_file_is_gone_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Machine(tmp_path)
    made._disk("7:9", "/gone/image (deleted)")
    monkeypatch.setattr(mounts, "SYS_BLOCK", made.blocks)
    table = mounts.parse("1 0 7:9 / / rw - ext4 /dev/loop9 rw")
    assert str(mounts.stack(tmp_path, table)).endswith("whose backing file is not seen here")
