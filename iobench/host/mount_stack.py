"""Stacks of mounts: an overlay on folders, a filesystem on a loop device on a file.

What lies on another mount is read through it, so all of them must be described, and data are cold
only where every one of them was crossed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from iobench.core.cases import Scalar
from iobench.core.protocols import Crossed, Filesystem
from iobench.core.records import IoCounters
from iobench.host import mounts
from iobench.host.mounts import MountInfo
from iobench.host.probes import read

SYS_BLOCK = Path("/sys/dev/block")
#: Mounts that may lie on one another.
DEEPEST = 8


class Layer(NamedTuple):
    """A mount, and the path on it through which the data are read."""

    mount: MountInfo
    path: Path


def layers(path: Path, mount: MountInfo) -> List[Layer]:
    """Return what lies below ``mount``, of which ``path`` is a part; [] where nothing does.

    An overlay lies on those folders of it that hold ``path``; a block device that is a loop device
    on its backing file.  Folders of an overlay that was made elsewhere (in a container, say) are
    not to be seen here: their mount is unknown.
    """
    if mount.fstype == "overlay":
        held = [Layer(mounts.mount_of(below), below) for below in overlaid(path, mount)]
        return held or [Layer(mounts.ABSENT, path)]
    if backing := backing_file(mount.device):
        return [Layer(mounts.mount_of(backing), backing)]
    return []


def overlaid(path: Path, mount: MountInfo) -> List[Path]:
    """Return the paths in an overlay's folders that hold ``path``: of a file only the first."""
    real = Path(os.path.realpath(path))
    inside = real.relative_to(mount.mount_point) if real.is_relative_to(mount.mount_point) else ""
    options = [mount.option("upperdir") or "", *_split(mount.option("lowerdir") or "")]
    folders = [Path(folder, inside) for folder in options if folder]
    held = [folder for folder in folders if os.path.lexists(folder)]
    return held[:1] if held and not held[0].is_dir() else held


def _split(folders: str) -> List[str]:
    """Return overlay's list of folders: between colons, with backslashes before other ones.

    Data-only layers follow two colons.
    """
    parts = [part for part in re.split(r"(?<!\\):", folders) if part]
    return [part.replace("\\:", ":") for part in parts]


def backing_file(device: str) -> Optional[Path]:
    """Return the file that a loop device (or the one that it is a part of) shows; None: no loop."""
    folder = (SYS_BLOCK / device).resolve()
    disk = folder.parent if (folder / "partition").exists() else folder
    name = read(disk / "loop" / "backing_file")
    return Path(name) if name else None


class Stacked(Filesystem):
    """A mount on others.  ``top``: itself, unless it is an overlay, which holds nothing."""

    def __init__(
        self,
        mount: MountInfo,
        top: Sequence[Filesystem],
        below: Sequence[Tuple[Filesystem, Layer]],
    ) -> None:
        self._mount, self._top, self._below = mount, tuple(top), tuple(below)
        self._members = [*self._top, *(member for member, _ in below)]

    def describe(self, path: Path) -> Mapping[str, Scalar]:
        """Return the facts of what holds the data, those of the mount itself, and its layers."""
        facts: Dict[str, Scalar] = {}
        for member, layer in reversed(self._below):
            facts = {**facts, **member.describe(layer.path)}
        for member in self._top:
            facts = {**facts, **member.describe(path)}
        words = [f"{layer.mount.fstype} at {layer.mount.mount_point}" for _, layer in self._below]
        overlay = self._mount.fstype == "overlay"
        return {**facts, **self._mount.facts(), "overlay": overlay, "layers": "; ".join(words)}

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return the counters of every layer, those below the mount by their number."""
        found = {name: n for member in self._top for name, n in member.counters(path).items()}
        for number, (member, layer) in enumerate(self._below):
            counted = member.counters(layer.path)
            found.update({f"layer{number}.{name}": n for name, n in counted.items()})
        return found

    def crossed(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return the least of what crossed the layers; uncounted where one of them is.

        Direct I/O of a loop device is its own thread's, not our processes': what the top counted
        has to be read below as well, unless something there keeps it.
        """
        if len(self._below) > 1:
            words = ", ".join(sorted({layer.mount.mount_point for _, layer in self._below}))
            return Crossed(None, f"its layers are on several mounts ({words})")
        found = [member.crossed(io, moved) for member in self._top]
        for number, (member, _) in enumerate(self._below):
            own = f"layer{number}."
            part = {n[len(own) :]: count for n, count in moved.items() if n.startswith(own)}
            found.append(member.crossed(io, part))
        uncounted = next((crossed for crossed in found if crossed.nbytes is None), None)
        return uncounted or min(found, key=lambda crossed: crossed.nbytes or 0)

    def cold(self) -> str:
        """Return the first reason of any layer."""
        return next((reason for member in self._members if (reason := member.cold())), "")

    def caches(self) -> Mapping[str, int]:
        """Return what the clients of all layers keep."""
        return {k: v for member in self._members for k, v in caches_of(member).items()}


def caches_of(filesystem: Filesystem) -> Mapping[str, int]:
    """Return what a filesystem's client keeps in memory of its own: name -> bytes."""
    ask: Callable[[], Mapping[str, int]] = getattr(filesystem, "caches", dict)
    return ask()
