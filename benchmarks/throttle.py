"""A private disk with a stated speed: ext4 on a loop device, throttled below the page cache.

The limit is a control group's (v1 blkio.throttle, or v2 io.max) and holds for the processes in
it and their children, whatever way they read: read(), mmap or O_DIRECT.  Cached bytes stay fast.
Needs root.  Try it: ``python -m benchmarks.throttle --read-bps 50000000 -- dd if=FILE ...``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from iobench.core.errors import BackendUnavailable

V1 = Path("/sys/fs/cgroup/blkio")
V2 = Path("/sys/fs/cgroup")
#: Joins the group named first, then becomes the command: no shell, and nothing of it remains.
_JOIN = (
    "import os, sys; f = open(sys.argv[1], 'w'); f.write(str(os.getpid())); f.close(); "
    "os.execvp(sys.argv[2], sys.argv[2:])"
)


@dataclasses.dataclass(frozen=True)
class ThrottledMount:
    """A mounted loop device and the control group that is slow on it.

    ``path``: mount point.  ``device``: ``major:minor``.  ``prefix``: words to put before a
    command that shall be throttled.
    """

    path: Path
    loop: str
    device: str
    group: Path
    version: int

    @property
    def prefix(self) -> tuple[str, ...]:
        return (sys.executable, "-I", "-S", "-c", _JOIN, str(self.group / "cgroup.procs"))

    def enter(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs ``argv`` inside the slow group."""
        return [*self.prefix, *argv]

    def limit(self, read_bps: int | None = None, read_iops: int | None = None) -> None:
        """Set the read limits from now on; None: no limit."""
        if self.version == 2:
            words = f"rbps={read_bps or 'max'} riops={read_iops or 'max'}"
            (self.group / "io.max").write_text(f"{self.device} {words}")
            return
        for name, value in (("bps", read_bps), ("iops", read_iops)):
            knob = self.group / f"blkio.throttle.read_{name}_device"
            knob.write_text(f"{self.device} {value or 0}")  # 0 takes the rule away


@contextlib.contextmanager
def throttled(
    size_bytes: int,
    read_bps: int | None = None,
    read_iops: int | None = None,
    *,
    folder: Path | None = None,
) -> Iterator[ThrottledMount]:
    """Mount an empty ext4 of ``size_bytes`` and take all of it away again at the end.

    ``folder`` holds the image file (default: the temporary directory); the loop device reads it
    with direct I/O, so that it is not cached twice.  What was set up is undone by its exact
    device and path, also when setting up fails half-way.

    Raises BackendUnavailable without root, loop devices or a control group that throttles.
    """
    version = _version()
    with contextlib.ExitStack() as undo:
        place = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="slow-", dir=folder)))
        path = place / "mount"
        path.mkdir()
        loop = undo.enter_context(loop_device(place / "image", size_bytes))
        system("mount", "-o", "noatime", loop, str(path))
        undo.callback(unmount, path)
        device = Path("/sys/class/block", Path(loop).name, "dev").read_text().strip()
        group = undo.enter_context(slow_group(place.name))
        mount = ThrottledMount(path, loop, device, group, version)
        mount.limit(read_bps, read_iops)
        yield mount


@contextlib.contextmanager
def throttled_device(
    path: Path, device: int, pids: Sequence[int], read_bps: int
) -> Iterator[ThrottledMount]:
    """Slow processes, and those that they start from now on, on a device that is there.

    ``path``: where it is mounted.  ``device``: as in ``st_dev``.  Raises BackendUnavailable.
    """
    name = f"{os.major(device)}:{os.minor(device)}"
    with slow_group(f"slow-{os.getpid()}-{name.replace(':', '-')}") as group:
        mount = ThrottledMount(path, "", name, group, _version())
        mount.limit(read_bps)
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield mount


@contextlib.contextmanager
def slow_group(name: str) -> Iterator[Path]:
    """Make a control group that can throttle; at the end its processes go back to its parent."""
    group = (V1 if _version() == 1 else V2) / name
    group.mkdir()
    try:
        yield group
    finally:
        _leave(group)


@contextlib.contextmanager
def loop_device(image: Path, size_bytes: int) -> Iterator[str]:
    """Yield a loop device with an empty ext4 in the file ``image``, read with direct I/O."""
    with image.open("wb") as file:
        file.truncate(size_bytes)
    no_lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
    system("mkfs.ext4", "-q", "-m", "0", "-E", no_lazy, str(image))
    loop = system("losetup", "--find", "--show", "--direct-io=on", str(image))
    try:
        yield loop
    finally:
        system("losetup", "--detach", loop)


def _version() -> int:
    """Return the control-group version that can throttle here.  Raises BackendUnavailable."""
    if os.geteuid() != 0:
        raise BackendUnavailable("a throttled mount needs root: loop device, mount, control group")
    absent = [name for name in ("losetup", "mkfs.ext4", "mount") if shutil.which(name) is None]
    if absent:
        raise BackendUnavailable(f"a throttled mount needs {', '.join(absent)}: install them")
    if (V1 / "blkio.throttle.read_bps_device").exists():
        return 1
    control = V2 / "cgroup.subtree_control"
    if control.exists() and "io" in (V2 / "cgroup.controllers").read_text().split():
        if "io" not in control.read_text().split():
            control.write_text("+io")
        return 2
    raise BackendUnavailable("no control group throttles reads here: need v1 blkio or v2 io.max")


def system(*argv: str, accept: Sequence[int] = (0,)) -> str:
    """Run a program; return what it wrote.  Raises BackendUnavailable with its error."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode not in accept:
        raise BackendUnavailable(f"{argv[0]} failed: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


def unmount(path: Path) -> None:
    """Unmount; a process that was just killed may hold a file for a moment more."""
    for _ in range(50):
        if subprocess.run(["umount", str(path)], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.1)
    system("umount", str(path))


def _leave(group: Path) -> None:
    """Move who is left to the parent group and remove the group."""
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            (group.parent / "cgroup.procs").write_text(pid)
    for _ in range(50):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)
    group.rmdir()


def main() -> int:
    """Copy files onto a throttled mount and run a command in the slow group."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--read-bps", type=int)
    parser.add_argument("--read-iops", type=int)
    parser.add_argument("--copy", type=Path, action="append", default=[], help="file to put there")
    parser.add_argument("command", nargs="+", help="run with the mount as working directory")
    options = parser.parse_args()
    size = (256 << 20) + 2 * sum(path.stat().st_size for path in options.copy)
    with throttled(size, options.read_bps, options.read_iops) as mount:
        for path in options.copy:
            shutil.copy(path, mount.path)
        system("sync", "-f", str(mount.path))
        return subprocess.run(mount.enter(options.command), cwd=mount.path, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
