"""Which mounts a path is on, by /proc/self/mountinfo.

Mounts stand on one another: an overlay on its layers, a loop device on a file.  :func:`stack`
follows them down to those that hold the bytes; what cannot be followed is said.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

from iobench.core.cases import Scalar
from iobench.host import probes

MOUNTINFO = Path("/proc/self/mountinfo")
SYS_BLOCK = Path("/sys/dev/block")
#: Mounts on mounts that are followed; nobody has so many.
DEEPEST = 8


@dataclasses.dataclass(frozen=True)
class MountInfo:
    """One line of mountinfo (proc(5)).  ``device`` is ``major:minor``.

    ``root``: the part of the filesystem that is mounted.  Of :func:`stack` also ``path``, where on
    it the data are, ``below``, the mounts that hold them, and ``hidden``, why not all of those are
    known; of :func:`mount_of` none of these.
    """

    device: str
    mount_point: str
    options: Tuple[str, ...]
    fstype: str
    source: str
    super_options: Tuple[str, ...]
    root: str = "/"
    path: Path = dataclasses.field(default=Path("/"), compare=False)
    below: Tuple[MountInfo, ...] = ()
    hidden: str = ""

    def pairs(self) -> List[Tuple[str, str]]:
        """Return the options as (name, value); "" where there is no value."""
        parts = (option.partition("=") for option in self.super_options + self.options)
        return [(key, value) for key, _, value in parts]

    def option(self, name: str) -> Optional[str]:
        """Return the value of ``name=value`` among the options, or None."""
        return next((value for key, value in self.pairs() if key == name), None)

    def facts(self) -> Dict[str, Scalar]:
        """Return what a record holds of the mount."""
        return {
            "fstype": self.fstype,
            "mount_point": self.mount_point,
            "source": self.source,
            "options": ",".join((*self.options, *self.super_options)),
            "device": self.device,
        }

    def all(self) -> Iterator[MountInfo]:
        """Yield this mount and all that are below it."""
        yield self
        for mount in self.below:
            yield from mount.all()

    def __str__(self) -> str:
        """Return ``squashfs at /set (/dev/loop3), on ext4 at / (/dev/vda)``."""
        words = f"{self.fstype} at {self.mount_point} ({self.source})"
        if self.below:
            words += f", on {' and '.join(dict.fromkeys(map(str, self.below)))}"
        return f"{words}, {self.hidden}" if self.hidden else words


def parse(text: str) -> List[MountInfo]:
    """Return the mounts of a mountinfo document, in mount order."""
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        if not separator:
            continue
        head, tail = left.split(), right.split()
        mounts.append(
            MountInfo(
                device=head[2],
                mount_point=_unescape(head[4]),
                options=tuple(head[5].split(",")),
                fstype=tail[0],
                source=_unescape(tail[1]),
                super_options=tuple(tail[2].split(",")) if len(tail) > 2 else (),
                root=_unescape(head[3]),
            )
        )
    return mounts


def mount_of(path: Path, mounts: Optional[List[MountInfo]] = None) -> MountInfo:
    """Return the mount that ``path`` (or its nearest existing parent) is on.

    The longest mount point that contains the path wins, and of equals the last one mounted: it
    hides the others.  ``st_dev`` would not do: overlay and btrfs report other numbers there.
    """
    real = Path(os.path.realpath(path))
    known = parse(MOUNTINFO.read_text()) if mounts is None else mounts
    above = [mount for mount in reversed(known) if real.is_relative_to(mount.mount_point)]
    absent = MountInfo("0:0", "/", (), "unknown", "unknown", ())  # a chroot whose root is no mount
    return max(above, key=lambda mount: len(mount.mount_point), default=absent)


def stack(path: Path, mounts: Optional[List[MountInfo]] = None, depth: int = 0) -> MountInfo:
    """Return the mount that ``path`` is on, with those below it that hold the path's data.

    An overlay stands on the layers in which the path is found (of a file: the uppermost), a loop
    device on the filesystem of its backing file.
    """
    known = parse(MOUNTINFO.read_text()) if mounts is None else mounts
    mount = dataclasses.replace(mount_of(path, known), path=path)
    if depth == DEEPEST:
        return dataclasses.replace(mount, hidden="and what is below is not known")
    folders, hidden = _below(mount, Path(os.path.realpath(path)))
    below = dict.fromkeys(stack(folder, known, depth + 1) for folder in folders)
    return dataclasses.replace(mount, below=tuple(below), hidden=hidden)


def _below(mount: MountInfo, path: Path) -> Tuple[List[Path], str]:
    """Return the paths on other mounts that hold the data of ``path``, and what is not known."""
    if mount.fstype == "overlay":
        return _layers(mount, path)
    if mount.fstype == "ecryptfs" and Path(mount.source).is_dir():
        return [Path(mount.source)], ""
    files = [_backing_file(disk) for disk in disks(block_device(mount)) if (disk / "loop").is_dir()]
    if not files and mount.source.startswith("/") and Path(mount.source).is_file():
        files = [Path(mount.source)]  # erofs mounts files without a loop device
    there = [file for file in files if file.is_file()]
    return there, "" if there == files else "on a loop device whose backing file is not seen here"


def _layers(mount: MountInfo, path: Path) -> Tuple[List[Path], str]:
    """Return where the layers of an overlay hold ``path``, its nearest existing parent else."""
    lower = re.split(r"(?<!\\):+", mount.option("lowerdir") or "")
    lower += [value for key, value in mount.pairs() if key in ("lowerdir+", "datadir+")]
    names = [mount.option("upperdir") or "", *lower]
    layers = [Path(name.replace("\\:", ":")) for name in names if name]
    unseen = "on layers that are not all seen here"
    if not layers or not all(layer.is_absolute() and layer.is_dir() for layer in layers):
        return [], unseen
    moved = {("redirect_dir", "on"), ("metacopy", "on")} & {*mount.pairs()}
    path = next(p for p in (path, *path.parents) if p.exists())
    inside = path.relative_to(mount.mount_point)
    found = [layer / inside for layer in layers if moved or (layer / inside).exists()]
    if moved:
        return layers, ""
    if not path.is_dir():
        found = found[:1]
    return found, "" if found else unseen


def whole_of(mount: MountInfo) -> Optional[MountInfo]:
    """Return where all of a mount's filesystem is mounted, if it is: it may be a part of it."""
    same = (m for m in parse(MOUNTINFO.read_text()) if m.device == mount.device and m.root == "/")
    return mount if mount.root == "/" else next(same, None)


def block_device(mount: MountInfo) -> str:
    """Return ``major:minor`` of the block device that a mount itself is on, "" where there is none.

    btrfs mounts carry an anonymous number, so the source is asked too.  Below ``fuseblk`` a daemon
    reads the device.
    """
    if mount.fstype == "fuseblk":
        return ""
    if (SYS_BLOCK / mount.device).exists():
        return mount.device
    if mount.source.startswith("/dev/") and mount.fstype not in ("zfs", "fuse"):
        number = probes.read(Path("/sys/class/block", Path(mount.source).resolve().name, "dev"))
        if number and (SYS_BLOCK / number).exists():
            return number
    return ""


def disks(device: str) -> List[Path]:
    """Return the folders in /sys of the disks below a block device: of partitions, LVM, RAID."""
    if not device:
        return []
    folder = (SYS_BLOCK / device).resolve()
    folder = folder.parent if (folder / "partition").exists() else folder
    slaves = sorted(folder.glob("slaves/*"))
    return [disk for part in slaves for disk in disks(probes.read(part / "dev"))] or [folder]


def _backing_file(disk: Path) -> Path:
    return Path(probes.read(disk / "loop" / "backing_file") or "/nonexistent")


def same_mount(a: Path, b: Path) -> bool:
    """Return whether two paths are on one filesystem (bind mounts of it count as the same)."""
    first, second = mount_of(a), mount_of(b)
    return all(getattr(first, n) == getattr(second, n) for n in ("device", "source", "fstype"))


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes (space, tab, newline, backslash, hash)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
