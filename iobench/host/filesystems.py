"""Which filesystem member knows the mount that a path is on, and what it says of it."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path
from typing import Mapping, Tuple

from iobench.core import registry
from iobench.core.cases import Scalar
from iobench.core.protocols import Filesystem
from iobench.core.records import IoCounters
from iobench.host import mounts, residency
from iobench.host.mounts import MountInfo
from iobench.host.stacked import Stacked

#: Member that takes every filesystem type that no other member names.
FALLBACK = "posix"


def member_of(mount: MountInfo) -> str:
    """Return the name of the filesystem member that knows a mount best."""
    best, found = 0, FALLBACK
    for name in registry.names("filesystems"):
        member = registry.load("filesystems", name)
        if fnmatch.fnmatchcase(mount.source, member.source):
            fits = [p for p in member.fstypes if fnmatch.fnmatchcase(mount.fstype, p)]
            length = max((len(p) + len(member.source) for p in fits), default=0)
            if length > best:
                best, found = length, name
    return found


def filesystem_for(path: Path) -> Tuple[str, Filesystem]:
    """Return (name, filesystem) of the member that knows the mount under ``path``.

    A mount that the fallback takes and that stands on others is followed to those: the name is then
    that of what holds the data.
    """
    return filesystem_of(mounts.stack(path))


def filesystem_of(mount: MountInfo) -> Tuple[str, Filesystem]:
    """Return (name, filesystem) of a mount with what is below it (:func:`mounts.stack`)."""
    name = member_of(mount)
    own: Filesystem = registry.load("filesystems", name).make(mount=mount)
    if name != FALLBACK or not (mount.below or mount.fstype == "overlay"):
        return name, own
    found = [(below, *filesystem_of(below)) for below in mount.below]
    names = dict.fromkeys(below_name for _, below_name, _ in found)
    stacked = Stacked(mount, own, [(below, filesystem) for below, _, filesystem in found])
    return "+".join(names) or name, stacked


def describe_mount(path: Path) -> Mapping[str, Scalar]:
    """Return facts of the mount under ``path``, with the member's name under ``filesystem``.

    ``stack``: what it stands on.  ``detected``: by what; the mount table alone knows what FUSE
    mounts are.
    """
    mount = mounts.stack(path)
    name, filesystem = filesystem_of(mount)
    facts = {"filesystem": name, "detected": _detected(path), "stack": str(mount)}
    return {**facts, **filesystem.describe(path)}


def unseen(path: Path) -> str:
    """Return what may hold data of ``path`` in memory on this host and shows it to nobody.

    The daemon of a FUSE filesystem has its own memory, and reads what it serves by the page cache
    of other files, unless a counter tells what came past it; of what is not known anything may be
    true.
    """
    found = []
    for mount in mounts.stack(path).all():
        if mount.fstype.startswith("fuse") and not _counted(mount):
            found.append(f"the daemon of {mount.fstype} at {mount.mount_point}")
        elif mount.hidden:
            found.append(f"what is below {mount.fstype} at {mount.mount_point}")
    return " and ".join(dict.fromkeys(found))


def _counted(mount: MountInfo) -> bool:
    """Return whether the mount's own counter has what came to its client."""
    _, filesystem = filesystem_of(mount)
    return filesystem.crossed(IoCounters(), zeros(filesystem, mount.path)).nbytes is not None


def zeros(filesystem: Filesystem, path: Path) -> Mapping[str, int]:
    """Return the names of a mount's counters, as if nothing had moved."""
    return dict.fromkeys(filesystem.counters(path), 0)


def _detected(path: Path) -> str:
    """Return by what a mount was recognised, and whether statfs(2) contradicts it."""
    expected = registry.load("filesystems", member_of(mounts.mount_of(path))).magic
    existing = next(p for p in (path, *path.resolve().parents) if p.exists())
    fd = os.open(str(existing), os.O_PATH)
    try:
        found = residency.magic(fd)
    finally:
        os.close(fd)
    if not expected:
        return f"the mount table; statfs(2): {found:#x}"
    return f"the mount table; statfs(2) {'agrees' if found in expected else f'says {found:#x}'}"
