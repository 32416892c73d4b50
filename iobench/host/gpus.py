"""GPUs of this node: whether one is here, how many a process sees, why torch can use none."""

from __future__ import annotations

import ctypes
import os
import re
from typing import List, Optional

VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVER = "libcuda.so.1"
_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
_NODES = "/dev"


def absent() -> str:
    """Return why no GPU can be used here, "" where a driver shows one."""
    if any(os.path.exists(device) for device in _DEVICES):
        return ""
    return f"no GPU is here (none of {', '.join(_DEVICES)} exists)"


def count() -> int:
    """Return how many of NVIDIA's GPUs the driver of this node shows; 0: none, or not known."""
    return sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in os.listdir(_NODES))


def chosen() -> List[str]:
    """Return the GPUs that the environment names, by number or uuid; empty where it names none."""
    return [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]


def too_few(ranks: int) -> str:
    """Return why a node's ranks cannot have a GPU each, with the remedy; "" where they can.

    A single GPU in the environment is the launcher's choice for one rank.
    """
    named = len(chosen())
    seen = named or count()
    if ranks <= 1 or named == 1 or not 0 < seen < ranks:
        return ""
    shows = f"{VISIBLE} shows {seen}" if named else f"the node has {seen}"
    return (
        f"{ranks} ranks of a node use GPUs, and {shows}: ask for as many GPUs, or set "
        f"ranks_per_node = {seen}"
    )


def fault(built: Optional[str]) -> str:
    """Return why torch can use no GPU in this process, with the remedy.

    ``built``: the version of CUDA that it was built for; None: for none.
    """
    if not built:
        return "this torch is built for none: install a CUDA build of it (docs/spec.md, A GPU)"
    if reason := absent():
        return f"{reason}: use device cpu, or a node with a GPU"
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return (
            f"the driver's library {DRIVER} is not found: in a container, the host's `ldconfig -p` "
            "must list it; on the host, add its folder to LD_LIBRARY_PATH"
        )
    code = driver.cuInit(0)
    if VISIBLE in os.environ and code in (0, 100):  # 100: it sees no device
        return f"{VISIBLE}={os.environ[VISIBLE]} names none that is here: unset or correct it"
    return (
        f"the driver answers error {code} (cuInit): run `nvidia-smi`; it may be too old for CUDA "
        f"{built}"
    )
