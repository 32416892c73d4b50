"""Limits that control groups put on this process: memory and CPU, versions 1 and 2."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, List, Optional, Tuple

from iobench.host.probes import read

#: cgroup v1 writes "no limit" as the largest number of whole pages.
_V1_UNLIMITED = 1 << 62
ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def memory_limits_bytes() -> List[int]:
    """Return every memory limit above this process; [] when there is none."""
    limits = [_number(folder / "memory.max") for folder in _folders("")]
    limits += [_number(folder / "memory.limit_in_bytes") for folder in _folders("memory")]
    return [limit for limit in limits if limit is not None and 0 < limit < _V1_UNLIMITED]


def cpu_limit() -> Optional[float]:
    """Return the smallest CPU quota above this process, in cores; None when there is none."""
    quotas = []
    for folder in _folders(""):
        words = read(folder / "cpu.max").split()
        if len(words) == 2 and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
    for folder in _folders("cpu"):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas) if quotas else None


def membership(controller: str) -> Optional[Tuple[Path, str]]:
    """Return (mount of the hierarchy, this process's path in it); ``""`` asks for version 2."""
    for line in read(MEMBERSHIP).splitlines():
        number, names, path = line.split(":", 2)
        if controller == "" and number == "0" and names == "":
            unified = ROOT / "unified"
            return (unified if unified.is_dir() else ROOT), path
        if controller and controller in names.split(","):
            mounts = [ROOT / controller, ROOT / names]
            return next((m for m in mounts if m.is_dir()), mounts[0]), path
    return None


def _folders(controller: str) -> Iterator[Path]:
    """Yield this process's folder and all above it; in a container only the mount's top is seen."""
    found = membership(controller)
    if found is None:
        return
    top, path = found
    folder = top / path.lstrip("/")
    yield from (f for f in (folder, *folder.parents) if top in f.parents and f.is_dir())
    yield top


def _number(path: Path) -> Optional[int]:
    text = read(path)
    return int(text) if text.lstrip("-").isdigit() else None
