"""Bytes, faults and CPU seconds of this process and its children, beside the machine's."""

from __future__ import annotations

import dataclasses
import os
import resource
from typing import Dict, Iterable, List, Tuple

from iobench.core.clock import clock
from iobench.core.records import IoCounters

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def snapshot(alive: Iterable[int] = ()) -> IoCounters:
    """Return absolute values now.

    /proc/self/io and rusage(children) hold a child's share only once it has been waited for, and
    then all of it, its start and its end included: name those that run in ``alive``.
    """
    io = _proc_io("self")
    rchar, read_bytes = io.get("rchar", 0), io.get("read_bytes", 0)
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    faults = own.ru_majflt + children.ru_majflt
    user_s, sys_s = own.ru_utime + children.ru_utime, own.ru_stime + children.ru_stime
    for pid in alive:
        io, used = _proc_io(str(pid)), _proc_stat(pid)
        rchar, read_bytes = rchar + io.get("rchar", 0), read_bytes + io.get("read_bytes", 0)
        faults, user_s, sys_s = faults + used[0], user_s + used[1], sys_s + used[2]
    busy_s, steal_s = _machine()
    return IoCounters(
        rchar=rchar,
        read_bytes=read_bytes,
        major_faults=faults,
        cpu_user_s=user_s,
        cpu_sys_s=sys_s,
        machine_busy_s=busy_s,
        machine_steal_s=steal_s,
        wall_s=clock(),
    )


def difference(before: IoCounters, after: IoCounters) -> IoCounters:
    """Return what happened between two snapshots of one process, field by field."""
    names = [field.name for field in dataclasses.fields(IoCounters)]
    return IoCounters(**{name: getattr(after, name) - getattr(before, name) for name in names})


def since(
    before: IoCounters, begun: IoCounters, ended: IoCounters, after: IoCounters
) -> IoCounters:
    """Return all bytes (a walk through the data is seen) and the rest of a loop alone.

    ``before``: when the loader was up; ``begun`` and ``ended``: around the loop, before the loader
    is closed (a spawned worker's interpreter takes a third of a CPU second to end); ``after``: when
    its children have been waited for, and none of their bytes can be missed.
    """
    loop, whole = difference(begun, ended), difference(before, after)
    return dataclasses.replace(loop, rchar=whole.rchar, read_bytes=whole.read_bytes)


def stat_fields(path: str) -> List[bytes]:
    """Return the fields of a process's or thread's stat file in /proc, from its state on (proc(5)).

    Raises OSError where it has ended.
    """
    return _read(path, 1024).rpartition(b")")[2].split()


def _proc_io(process: str) -> Dict[str, int]:
    """Return /proc/PROCESS/io; {} where the kernel has no task accounting, or it has ended."""
    try:
        text = _read(f"/proc/{process}/io", 512)
    except OSError:
        return {}
    pairs = (line.split(b":") for line in text.splitlines())
    return {name.decode(): int(value) for name, value in pairs}


def _proc_stat(pid: int) -> Tuple[int, float, float]:
    """Return (major faults, user s, system s) of a process and what it reaped; zeros: it ended."""
    try:
        fields = stat_fields(f"/proc/{pid}/stat")
        faults, child_faults, user, system, child_user, child_system = map(int, fields[9:15])
    except (OSError, ValueError):
        return 0, 0.0, 0.0
    user_s, system_s = (user + child_user) / _TICKS_PER_S, (system + child_system) / _TICKS_PER_S
    return faults + child_faults, user_s, system_s


def _machine() -> Tuple[float, float]:
    """Return (busy, stolen) seconds of all cores since boot (proc(5), first line of stat).

    ``guest`` is inside ``user`` already.  Busy leaves out idle, iowait and steal.
    """
    try:
        line = _read("/proc/stat", 256).split(b"\n", 1)[0].split()
    except OSError:
        return 0.0, 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(v) for v in line[1:9])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S, steal / _TICKS_PER_S


def _read(path: str, limit: int) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, limit)
    finally:
        os.close(fd)
