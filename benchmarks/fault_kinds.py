"""What a fault is: what it does to a scene, at which moments, what the command must say of it."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable

from benchmarks.fault_scene import MOMENTS, WHOLE, Scene

Act = Callable[[Scene], object]
STRUCK, WHOLLY = tuple(MOMENTS), tuple(WHOLE)
MEASURED = ("cold", "warm", "turns")
ANY = frozenset((0, 1, 2))
#: Runtimes, in each of which a driver is killed.
CONTAINERS = ("unpacked", "docker", "podman", "apptainer", "charliecloud")


def nothing(_: Scene) -> None:
    """Do nothing."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One kind of fault.

    ``moments``: names of :data:`MOMENTS`, at which it strikes, or of :data:`WHOLE`, the commands
    that it lasts for.  ``arrange``: before the command starts.  ``strike``: at the moment.
    ``cure``: before the remedy is followed.  ``says``: a pattern that the command's line has where
    the status is not 0.  ``heard``: standard error can be read.  ``needs``: why it cannot be made
    here, "" where it can.  ``suite``: which one.  ``lost_rung``: a trial of the ladder may be lost
    with status 0, since no answer needs it; a resumed run makes it again.
    """

    name: str
    moments: tuple[str, ...]
    arrange: Act = nothing
    strike: Act = nothing
    cure: Act = nothing
    statuses: frozenset[int] = ANY
    says: str = ""
    heard: bool = True
    needs: Callable[[], str] = str
    suite: str = "bare"
    lost_rung: bool = False


def prelude(words: str) -> Act:
    """Have the shell do this before the command starts."""

    def arrange(scene: Scene) -> None:
        scene.prelude = words

    return arrange


def lift(scene: Scene) -> None:
    """Start as usual again."""
    scene.prelude = ""
    scene.cwd = scene.root


def usual(scene: Scene) -> None:
    """Have the usual environment again."""
    scene.tmp = scene.root / "tmp"
    scene.env.clear()
    scene.env.update({**os.environ, "TMPDIR": str(scene.tmp)})
    lift(scene)


def absent(*programs: str) -> str:
    """Return which of these programs there are not, "" for none."""
    missing = [p for p in programs if shutil.which(p) is None]
    return f"no {', '.join(missing)}" if missing else ""


def root_only() -> str:
    """Return why mounts cannot be made."""
    return "not root" if os.geteuid() else absent("losetup", "mkfs.ext4", "fsck.ext4")
