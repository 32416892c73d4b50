"""Remarks on how one case was measured, and what its hand-overs between processes cost."""

from __future__ import annotations

import math
from statistics import median

from iobench.analysis.case_results import HandoverResult
from iobench.analysis.evidence import Evidence
from iobench.core.cases import Case
from iobench.core.order import remainder
from iobench.core.records import RankResult


def remarks(found: Evidence, case: Case) -> list[str]:
    """Return each remark that the workers noted while this case was measured, once."""
    lines: dict[str, None] = {}
    for stage in ("load", "train"):
        for rank in (rank for record in found.of(case, stage) for rank in record.ranks):
            noted = [(rank.notes.get(part) or {}).get("remark") for part in ("loader", "trainer")]
            lines |= {f"{stage}: {text}": None for text in (_short_run(rank, case), *noted) if text}
    return [*lines, *_left_out(found, case), *_containers(found, case)]


def _left_out(found: Evidence, case: Case) -> list[str]:
    """Return how many samples the ranks of a case leave out of an epoch, where they do."""
    held = found.plan.dataset.samples
    total = min(case.samples or held, held)
    left = remainder(total, case.batch, case.world_size)
    if case.world_size == 1 or not left:
        return []
    return [
        f"{left:,} of {total:,} samples are left out of an epoch: they fill no batch of "
        f"{case.batch} on each of {case.world_size} ranks"
    ]


def _containers(found: Evidence, case: Case) -> list[str]:
    """Return in how many containers the ranks of a case were, as their namespaces say."""
    if (words := case.launcher_options.get("container")) and case.launcher == "srun":
        return [f"srun starts each rank in a container: {words}"]
    stages = ("load", "train", "compute")
    records = [r for s in stages for r in found.of(case, s) if r.ranks and r.runtime.get("scope")]
    for record in records[:1]:
        scope = record.runtime["scope"]
        spaces = {(r.host, r.fingerprint.get("mount_namespace", "")) for r in record.ranks}
        wanted = case.world_size if scope == "rank" else case.nodes
        count, many = len(spaces), "s" if len(spaces) > 1 else ""
        but = "" if count == wanted else f", and not in {wanted}"
        return [f"{case.world_size} ranks in {count} container{many}{but}: one a {scope}"]
    return []


def _short_run(rank: RankResult, case: Case) -> str:
    """Return a warning when a run was short against a queue that fills by itself, else ""."""
    wanted = int((rank.notes.get("loader") or {}).get("long_run_batches") or 0)
    steps = len(rank.steps.done_s)
    if steps >= wanted:
        return ""
    return (
        f"{steps} batches against a queue of {rank.notes['queue_batches']} measure the queue, not "
        f"the loader: take {wanted * case.batch * case.world_size:,} samples or more, or a smaller "
        "batch or prefetch"
    )


def handover(found: Evidence, case: Case) -> HandoverResult | None:
    """Return what it costs to bring a batch from another process; None where none was brought."""
    noted = [
        rank.notes["handover_s"]
        for stage in ("load", "train")  # the others hand over no pixels
        for record in found.of(case, stage)
        for rank in record.ranks
        if "handover_s" in rank.notes
    ]
    if not noted:
        return None
    batches = sum(n["batches"] for n in noted)
    return HandoverResult(
        batches=batches,
        median=median(n["median"] for n in noted),
        mean=math.fsum(n["mean"] * n["batches"] for n in noted) / batches,
        copy=median(n["copy_median"] for n in noted),
        wake=median(n["wake_median"] for n in noted),
    )
