"""What the ranks of a case saw of their machine: facts that explain a rate and are no rate."""

from __future__ import annotations

from typing import Any

from iobench.analysis.case_results import Surroundings
from iobench.analysis.evidence import Evidence
from iobench.analysis.sample_cost import per_sample
from iobench.core.cases import Case
from iobench.core.records import Record

#: The stages whose ranks load data, those of the job itself first.
_STAGES = ("train", "load", "decode", "read")


def surroundings(found: Evidence, case: Case) -> Surroundings:
    """Return what was seen around the trials of a case."""
    warm, cold = found.of(case, "load", "warm", "-"), found.of(case, "read", "cold")
    compute = found.shared(case, "compute")
    record = next((r for s in _STAGES for r in found.of(case, s) if r.ranks), None)
    facts = record.ranks[0].fingerprint if record else {}
    limits = facts.get("limits") or {}
    return Surroundings(
        cpu_count=int((facts.get("cpu") or {}).get("count") or 0),
        threads=facts.get("threads") or {},
        shm_bytes=int(facts.get("dev_shm_bytes") or 0),
        memory_bytes=int(case.memory_bytes or limits.get("memory_bytes") or 0),
        fstype=str((record.mount if record else {}).get("fstype") or ""),
        mounted=str((record.runtime if record else {}).get("mounted") or ""),
        store=str((record.runtime if record else {}).get("store") or ""),
        container=facts.get("container") or {},
        load_cpu_s=per_sample(warm).cpu_s if warm else None,
        compute_cpu_s=per_sample(compute).cpu_s if compute else None,
        faults=per_sample(cold).major_faults if cold else None,
        **(_bound(found, record) if record else {}),
    )


def _bound(found: Evidence, record: Record) -> dict[str, Any]:
    """Return the rank that may use the fewest cores, how many, and its share of its node's."""
    known = [rank for rank in record.ranks if rank.fingerprint.get("affinity")]
    if not known:
        return {}
    least = min(known, key=lambda rank: len(rank.fingerprint["affinity"]))
    facts, case = least.fingerprint, record.trial.case
    job = found.plan.sessions[-1].facts if found.plan.sessions else {}
    limits = (facts["cpu"].get("count"), job.get("cores"), (facts.get("limits") or {}).get("cpus"))
    where = f" on node {least.host}" if case.nodes > 1 else ""
    return {
        "rank_cores": len(facts["affinity"]),
        "bound_rank": f"rank {least.rank}{where}",
        "core_share": int(min(filter(None, limits), default=0)) // case.ranks_per_node,
    }
