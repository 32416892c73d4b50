"""Which mount a path is on: /proc/self/mountinfo, parsed."""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from typing import List, Optional, Tuple

MOUNTINFO = Path("/proc/self/mountinfo")


@dataclasses.dataclass(frozen=True)
class Mount:
    """One line of mountinfo (proc(5)).  ``device`` is ``major:minor``."""

    device: str
    root: str
    mount_point: str
    options: Tuple[str, ...]
    fstype: str
    source: str
    super_options: Tuple[str, ...]

    def option(self, name: str) -> Optional[str]:
        """Return the value of ``name=value`` among the options, or None."""
        for option in self.super_options + self.options:
            key, _, value = option.partition("=")
            if key == name:
                return value
        return None


def parse(text: str) -> List[Mount]:
    """Return the mounts of a mountinfo document, in mount order."""
    mounts = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        if not separator:
            continue
        head, tail = left.split(), right.split()
        mounts.append(
            Mount(
                device=head[2],
                root=_unescape(head[3]),
                mount_point=_unescape(head[4]),
                options=tuple(head[5].split(",")),
                fstype=tail[0],
                source=_unescape(tail[1]),
                super_options=tuple(tail[2].split(",")) if len(tail) > 2 else (),
            )
        )
    return mounts


def mount_of(path: Path, mounts: Optional[List[Mount]] = None) -> Mount:
    """Return the mount that ``path`` (or its nearest existing parent) is on.

    The longest mount point that contains the path wins, and of equals the last one mounted: it
    hides the others.  ``st_dev`` would not do: overlay and btrfs report other numbers there.
    """
    real = os.path.realpath(path)
    best: Optional[Mount] = None
    for mount in parse(MOUNTINFO.read_text()) if mounts is None else mounts:
        point = mount.mount_point
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best.mount_point)):
            best = mount
    if best is None:  # a chroot whose root is no mount
        return Mount("0:0", "/", "/", (), "unknown", "unknown", ())
    return best


def same_mount(a: Path, b: Path) -> bool:
    """Return whether two paths are on one filesystem (bind mounts of it count as the same)."""
    first, second = mount_of(a), mount_of(b)
    return (first.device, first.source, first.fstype) == (
        second.device,
        second.source,
        second.fstype,
    )


def _unescape(text: str) -> str:
    """Undo the kernel's octal escapes (space, tab, newline, backslash, hash)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
