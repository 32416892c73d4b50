"""What a container does to I/O without a word: facts of the process inside it, and what they mean.

Each fault is found from facts that the process sees; what it does not see is no fault.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Dict, NamedTuple

from iobench.core.cases import Scalar
from iobench.core.inside import CODE_INSIDE
from iobench.host import probes
from iobench.host.mounts import mount_of

#: cuFile looks up the devices below a file there.
UDEV = Path("/run/udev")
#: The kernel's part of GPUDirect Storage shows itself here.
NVIDIA_FS = Path("/proc/driver/nvidia-fs")
#: A user namespace that is the machine's own maps every id to itself.
_EVERY_ID = "0 0 4294967295"
#: Files of the system, from the image where there is one.
SYSTEM = Path("/usr")


class View(NamedTuple):
    """What one process sees.

    ``inside``: in a container.  ``fstype``: of the data, ``system``: of the image's files, of which
    ``system_bytes`` are used on that mount.  ``direct``: what reads by GPUDirect Storage, "": none.
    """

    inside: bool = False
    uid_map: str = _EVERY_ID
    fstype: str = ""
    system: str = ""
    system_bytes: int = 0
    direct: str = ""
    udev: bool = True


def look(data_path: Path) -> View:
    """Return what this process sees."""
    return View(
        inside=__file__.startswith(f"{CODE_INSIDE}/"),
        uid_map=" ".join(probes.read("/proc/self/uid_map").split()),
        fstype=mount_of(data_path).fstype,
        system=mount_of(SYSTEM).fstype,
        system_bytes=used_bytes(SYSTEM),
        direct=direct_reads(),
        udev=UDEV.is_dir(),
    )


def faults(view: View) -> Dict[str, Scalar]:
    """Return fault -> the fact that shows it; {} where there is none; pure."""
    found: Dict[str, Scalar] = {}
    if view.direct and not view.udev:
        found["udev_hidden_from"] = view.direct
    if view.fstype == "lustre" and view.uid_map not in ("", _EVERY_ID):
        found["lustre_users"] = f"namespace of its own ({view.uid_map})"
    if view.inside and view.system in ("tmpfs", "ramfs"):
        found["image_on"] = view.system
        found["image_mount_bytes"] = view.system_bytes
    return found


def direct_reads() -> str:
    """Return what reads by GPUDirect Storage in this process; "" for nothing.

    PyTorch maps libcufile without using it: only with the kernel's driver it counts.
    """
    if "kvikio" in sys.modules:
        return "kvikio"
    mapped = NVIDIA_FS.exists() and "libcufile" in probes.read("/proc/self/maps")
    return "libcufile" if mapped else ""


def used_bytes(path: Path) -> int:
    """Return the bytes that are used on the mount of a path; 0 where it does not answer."""
    try:
        status = os.statvfs(path)
    except OSError:
        return 0
    return (status.f_blocks - status.f_bfree) * status.f_frsize
