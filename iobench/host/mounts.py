"""Which mount a path is on, by /proc/self/mountinfo, and which filesystem member knows it."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Tuple

from iobench.core import registry
from iobench.core.cases import Scalar
from iobench.core.protocols import Filesystem

#: Member that takes every filesystem type that no other member names.
FALLBACK = "posix"
MOUNTINFO = Path("/proc/self/mountinfo")


@dataclasses.dataclass(frozen=True)
class MountInfo:
    """One line of mountinfo (proc(5)).  ``device`` is ``major:minor``."""

    device: str
    mount_point: str
    options: Tuple[str, ...]
    fstype: str
    source: str
    super_options: Tuple[str, ...]

    def option(self, name: str) -> Optional[str]:
        """Return the value of ``name=value`` among the options, or None."""
        pairs = (option.partition("=") for option in self.super_options + self.options)
        return next((value for key, _, value in pairs if key == name), None)

    def facts(self) -> Dict[str, Scalar]:
        """Return what a record holds of the mount."""
        return {
            "fstype": self.fstype,
            "mount_point": self.mount_point,
            "source": self.source,
            "options": ",".join((*self.options, *self.super_options)),
            "device": self.device,
        }


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


def same_mount(a: Path, b: Path) -> bool:
    """Return whether two paths are on one filesystem (bind mounts of it count as the same)."""
    first, second = mount_of(a), mount_of(b)
    return all(getattr(first, n) == getattr(second, n) for n in ("device", "source", "fstype"))


def filesystem_for(path: Path) -> Tuple[str, Filesystem]:
    """Return (name, filesystem) of the member that knows the mount under ``path``."""
    mount = mount_of(path)
    members = ((name, registry.load("filesystems", name)) for name in registry.names("filesystems"))
    name = next((name for name, member in members if mount.fstype in member.fstypes), FALLBACK)
    return name, registry.load("filesystems", name).make(mount=mount)


def describe_mount(path: Path) -> Mapping[str, Scalar]:
    """Return facts of the mount under ``path``, with the member's name under ``filesystem``."""
    name, filesystem = filesystem_for(path)
    return {"filesystem": name, **filesystem.describe(path)}


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes (space, tab, newline, backslash, hash)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
