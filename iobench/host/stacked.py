"""A mount on others as one filesystem: an overlay on its layers, a disk on a loop device on a file.

What lies on another mount is read through it, so all of them are described, and data are cold only
where every one of them was crossed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Dict, List, Mapping, Sequence, Tuple

from iobench.core.cases import Scalar
from iobench.core.protocols import Crossed, Filesystem
from iobench.core.records import IoCounters
from iobench.host.mounts import MountInfo


class Stacked(Filesystem):
    """A mount on others.  ``own``: the member that knows itself.

    ``below``: the mounts that hold the data, first the uppermost, each with its member.  An overlay
    holds nothing itself.
    """

    def __init__(
        self, mount: MountInfo, own: Filesystem, below: Sequence[Tuple[MountInfo, Filesystem]]
    ) -> None:
        self._mount, self._below = mount, tuple(below)
        self._overlay = mount.fstype == "overlay"
        self._own: List[Filesystem] = [] if self._overlay else [own]

    def describe(self, path: Path) -> Mapping[str, Scalar]:
        """Return the facts of what holds the data, below those of the mount itself."""
        facts: Dict[str, Scalar] = {}
        for mount, member in reversed(self._below):
            facts.update(member.describe(mount.path))
        for member in self._own:
            facts.update(member.describe(path))
        return {**facts, **self._mount.facts(), "overlay": self._overlay}

    def counters(self, path: Path) -> Mapping[str, int]:
        """Return the counters of every layer, those below the mount by their number."""
        found = {name: n for member in self._own for name, n in member.counters(path).items()}
        for number, (mount, member) in enumerate(self._below):
            counted = member.counters(mount.path)
            found.update({f"layer{number}.{name}": n for name, n in counted.items()})
        return found

    def crossed(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return the least of what crossed the mount and what is below it.

        Uncounted where one of them is.  The direct I/O of a loop device is its own thread's, not
        our processes': what it counts has to be read below as well, unless something there keeps
        it.
        """
        found = [member.crossed(io, moved) for member in self._own]
        if self._below:
            found.append(self._layers(io, moved))
        elif self._overlay:
            found.append(Crossed(None, f"{self._mount.mount_point} is {self._mount.hidden}"))
        uncounted = next((crossed for crossed in found if crossed.nbytes is None), None)
        return uncounted or min(found, key=lambda crossed: crossed.nbytes or 0)

    def _layers(self, io: IoCounters, moved: Mapping[str, int]) -> Crossed:
        """Return what crossed the mounts below, each of which holds a part of the data."""
        found = []
        for number, (_, member) in enumerate(self._below):
            own = f"layer{number}."
            part = {n[len(own) :]: count for n, count in moved.items() if n.startswith(own)}
            found.append(member.crossed(io, part))
        if uncounted := next((crossed for crossed in found if crossed.nbytes is None), None):
            return uncounted
        if len(found) > 1 and any(crossed.whole for crossed in found):
            words = ", ".join(sorted({mount.mount_point for mount, _ in self._below}))
            return Crossed(None, f"its layers are on several mounts ({words})")
        return max(found, key=lambda crossed: crossed.nbytes or 0)  # the same count of ours in all

    def cold(self) -> str:
        """Return the mount's own reason, else the first of those below it."""
        if own := next((reason for member in self._own if (reason := member.cold())), ""):
            return own
        below = next((reason for _, member in self._below if (reason := member.cold())), "")
        at = f"{self._mount.fstype} at {self._mount.mount_point}"
        return f"{at} stands on another: {below}" if below else ""

    def caches(self) -> Mapping[str, int]:
        """Return what the clients of all mounts keep."""
        members = [*self._own, *(member for _, member in self._below)]
        return {name: n for member in members for name, n in caches_of(member).items()}


def caches_of(filesystem: Filesystem) -> Mapping[str, int]:
    """Return what a filesystem's client keeps in memory of its own: name -> bytes."""
    ask: Callable[[], Mapping[str, int]] = getattr(filesystem, "caches", dict)
    return ask()
