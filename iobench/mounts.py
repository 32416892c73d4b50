"""The filesystem under a path is detected, not chosen: mount -> member of ``filesystems/``."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping, Tuple

from iobench import registry
from iobench.model import Scalar
from iobench.mountinfo import mount_of, same_mount
from iobench.protocols import Filesystem

__all__ = ["describe_mount", "filesystem_for", "same_mount"]

FALLBACK = "posix"


def filesystem_for(path: Path) -> Tuple[str, Filesystem]:
    """Return (name, filesystem) of the member that knows the mount under ``path``.

    Members are made with the keyword ``mount`` (a :class:`iobench.mountinfo.Mount`).
    """
    mount = mount_of(path)
    name = member_for(mount.fstype)
    filesystem: Filesystem = registry.load("filesystems", name).make(mount=mount)
    return name, filesystem


def member_for(fstype: str) -> str:
    """Return the member whose ``fstypes`` hold ``fstype``; the fallback when none does."""
    for name in registry.names("filesystems"):
        if fstype in registry.load("filesystems", name).fstypes:
            return name
    return FALLBACK


def describe_mount(path: Path) -> Mapping[str, Scalar]:
    """Return facts of the mount under ``path``, with the member's name under ``filesystem``."""
    name, filesystem = filesystem_for(path)
    return {"filesystem": name, **filesystem.describe(path)}
