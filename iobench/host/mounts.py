"""Which mount a path is on, by /proc/self/mountinfo."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from iobench.core.cases import Scalar

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
    root: str = "/"  # the part of the filesystem that is mounted

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


#: Of a chroot whose root is no mount.
ABSENT = MountInfo("0:0", "/", (), "unknown", "unknown", ())


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
    return max(above, key=lambda mount: len(mount.mount_point), default=ABSENT)


def whole_of(mount: MountInfo) -> Optional[MountInfo]:
    """Return where all of a mount's filesystem is mounted, if it is: it may be a part of it."""
    same = (m for m in parse(MOUNTINFO.read_text()) if m.device == mount.device and m.root == "/")
    return mount if mount.root == "/" else next(same, None)


def same_mount(a: Path, b: Path) -> bool:
    """Return whether two paths are on one filesystem (bind mounts of it count as the same)."""
    first, second = mount_of(a), mount_of(b)
    return all(getattr(first, n) == getattr(second, n) for n in ("device", "source", "fstype"))


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes (space, tab, newline, backslash, hash)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
