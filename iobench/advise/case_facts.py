"""What is known before a suite runs, and what will go wrong by it: the values of case_checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple


class CaseFinding(NamedTuple):
    """One thing that will go wrong."""

    name: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}; {self.remedy}"


class Seen(NamedTuple):
    """A file or folder of the dataset; ``target``: where it leads, links followed."""

    path: str
    target: str
    uid: int
    gid: int
    mode: int
    folder: bool


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of the machine and the data.  Reasons are "" where all is well.

    ``store``: filesystem member and folder of the engine's images and upper layers; ``image``: of
    an image that is a file or a folder; ``memory_bytes`` are used there, if it is in memory.
    ``direct``: what could read by GPUDirect Storage; ``udev``: this host has /run/udev.
    ``own_users``: the runtime makes a user namespace.
    """

    uid: int = 0
    groups: Sequence[int] = ()
    shm_bytes: int = 0
    data_bytes: int = 0
    files: Sequence[Seen] = ()
    fstype: str = ""
    reachable: bool = True  # everybody may pass the folders above the data
    selinux: bool = False
    user_namespaces: str = ""
    fuse: str = ""
    capabilities: int = -1
    store: tuple[str, str] = ("", "")
    image: tuple[str, str] = ("", "")
    memory_bytes: int = 0
    direct: str = ""
    udev: bool = False
    own_users: bool = False
