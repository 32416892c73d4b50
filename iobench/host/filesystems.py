"""Which filesystem member knows the mount that a path is on, and what it says of it."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path
from typing import Mapping, Tuple

from iobench.core import registry
from iobench.core.cases import Scalar
from iobench.core.protocols import Filesystem
from iobench.host import mount_stack, residency
from iobench.host.mounts import MountInfo, mount_of

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

    A mount that the fallback takes and that lies on others is followed to those: the name is then
    that of what holds the data.
    """
    return _filesystem(path, mount_of(path), 0)


def _filesystem(path: Path, mount: MountInfo, depth: int) -> Tuple[str, Filesystem]:
    name = member_of(mount)
    own: Filesystem = registry.load("filesystems", name).make(mount=mount)
    layers = mount_stack.layers(path, mount) if name == FALLBACK else []
    if not layers or depth == mount_stack.DEEPEST:
        return name, own
    unlike = {layer.mount: layer for layer in layers}  # folders of one mount count once
    below = [(_filesystem(la.path, la.mount, depth + 1), la) for la in unlike.values()]
    names = dict.fromkeys(n for (n, _), _ in below)
    top = [] if mount.fstype == "overlay" else [own]
    stacked = mount_stack.Stacked(mount, top, [(found, layer) for (_, found), layer in below])
    return "+".join(names), stacked


def describe_mount(path: Path) -> Mapping[str, Scalar]:
    """Return facts of the mount under ``path``, with the member's name under ``filesystem``.

    ``detected``: by what; the mount table alone knows what FUSE mounts are.
    """
    name, filesystem = filesystem_for(path)
    return {"filesystem": name, "detected": _detected(path), **filesystem.describe(path)}


def _detected(path: Path) -> str:
    """Return by what a mount was recognised, and whether statfs(2) contradicts it."""
    expected = registry.load("filesystems", member_of(mount_of(path))).magic
    existing = next(p for p in (path, *path.resolve().parents) if p.exists())
    fd = os.open(str(existing), os.O_PATH)
    try:
        found = residency.magic(fd)
    finally:
        os.close(fd)
    if not expected:
        return f"the mount table; statfs(2): {found:#x}"
    return f"the mount table; statfs(2) {'agrees' if found in expected else f'says {found:#x}'}"
