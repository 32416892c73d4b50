"""Bytes, faults and CPU seconds of this process and its reaped children, beside the machine's."""

from __future__ import annotations

import dataclasses
import os
import resource
from typing import Dict, Tuple

from iobench.model import IoCounters
from iobench.timing import clock

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def snapshot() -> IoCounters:
    """Return absolute values now.

    /proc/self/io and rusage(children) hold a child's share only once it has been waited for: take
    the second snapshot after the loader has been closed.
    """
    io = _proc_io()
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy_s, steal_s = _machine()
    return IoCounters(
        rchar=io.get("rchar", 0),
        read_bytes=io.get("read_bytes", 0),
        major_faults=own.ru_majflt + children.ru_majflt,
        cpu_user_s=own.ru_utime + children.ru_utime,
        cpu_sys_s=own.ru_stime + children.ru_stime,
        machine_busy_s=busy_s,
        machine_steal_s=steal_s,
        wall_s=clock(),
    )


def difference(before: IoCounters, after: IoCounters) -> IoCounters:
    """Return what happened between two snapshots of one process, field by field."""
    return IoCounters(
        **{
            field.name: getattr(after, field.name) - getattr(before, field.name)
            for field in dataclasses.fields(IoCounters)
        }
    )


def since(before: IoCounters, begun: IoCounters, after: IoCounters) -> IoCounters:
    """Return the bytes since ``before`` (a walk through the data is seen) and the rest of a loop.

    ``begun``: when the loop began.
    """
    loop, whole = difference(begun, after), difference(before, after)
    return dataclasses.replace(loop, rchar=whole.rchar, read_bytes=whole.read_bytes)


def foreign_cpu_s(io: IoCounters) -> float:
    """Return the CPU seconds that others used inside this machine during ``io``, at least 0.

    /proc/stat counts in ticks (10 ms a core), so a few hundredths of a second are noise.
    """
    return max(0.0, io.machine_busy_s - io.cpu_user_s - io.cpu_sys_s)


def _proc_io() -> Dict[str, int]:
    """Return /proc/self/io; {} where the kernel was built without task accounting."""
    try:
        text = _read("/proc/self/io", 512)
    except OSError:
        return {}
    pairs = (line.split(b":") for line in text.splitlines())
    return {name.decode(): int(value) for name, value in pairs}


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
