"""What disturbed a trial, and the rule by which its pair is repeated: stated before any runs."""

from __future__ import annotations

from iobench.analysis import ranks
from iobench.core.records import INVALID, Record

#: Of the wall time, in CPU: other processes' (and at least so many seconds), and the hypervisor's.
FOREIGN_SHARE, FOREIGN_FLOOR_S, STEAL_SHARE = 0.03, 0.1, 0.01


def disturbed(record: Record) -> str:
    """Return why a trial's pair should be repeated, or "" when nothing disturbed it.

    An INVALID trial, another driver on the machine, or what took its cores.  Arms that took turns
    met the last alike.
    """
    if record.status == INVALID:
        return record.reasons[0]
    if rivals := record.notes.get("rivals"):
        return f"another iobench ran on this node: {rivals[0]}"
    return "" if record.slices else cores_taken(record)


def cores_taken(record: Record) -> str:
    """Return what rivals or the hypervisor took of the cores beside a trial, "" where little."""
    several = len({r.host for r in record.ranks}) > 1
    for names, io in ranks.by_machine(record.ranks):  # a rank is no rival of another
        on = f" on {names}" if several else ""
        foreign = io.foreign_cpu_s - (record.slices.others_cpu_s if record.slices else 0.0)
        if foreign > max(FOREIGN_SHARE * io.wall_s, FOREIGN_FLOOR_S):
            return f"rivals{on} used {foreign:.2f} s of CPU in {io.wall_s:.2f} s"
        if io.machine_steal_s > max(STEAL_SHARE * io.wall_s, 0.02):
            stolen = io.machine_steal_s
            return f"the hypervisor stole{on} {stolen:.2f} s in {io.wall_s:.2f} s"
    return ""
