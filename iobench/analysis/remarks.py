"""Remarks on how one case was measured, and what its hand-overs between processes cost."""

from __future__ import annotations

import math
from statistics import median

from iobench.analysis.case_results import HandoverResult
from iobench.analysis.evidence import WARM_STATES, Evidence, trial_window
from iobench.core import stages
from iobench.core.cases import Case
from iobench.core.order import remainder
from iobench.core.records import Record
from iobench.equations.stalls import HANDOVER_S

#: A window of so many times the queue is the loader's, whatever the queue held at its beginning.
QUEUES = 10
#: So many times the rate of the whole loop, of a shorter one, is the queue's doing.
FASTER = 1.1
#: Of a script, whose loop ends after so many seconds.
SHORT = (
    "the loop was short beside the loader's queue: part of its batches may have been made before; "
    "give more --seconds"
)


def remarks(found: Evidence, case: Case) -> list[str]:
    """Return each remark on how this case was measured, the workers' own too, once."""
    lines: dict[str, None] = {}
    for stage in ("load", "train"):
        for rank in (rank for record in found.of(case, stage) for rank in record.ranks):
            noted = [(rank.notes.get(part) or {}).get("remark") for part in ("loader", "trainer")]
            lines |= {f"{stage}: {text}": None for text in noted if text}
    loops = [*_queues(found, case), *lines, *_taken(found, case)]
    return [*loops, *_left_out(found, case), *_containers(found, case)]


def _queues(found: Evidence, case: Case) -> list[str]:
    """Return what the stages of a case measured of its loader's queue, equal words once."""
    said: dict[str, dict[str, None]] = {}
    for stage in stages.contrasted():
        for text in filter(None, map(queue_remark, found.of(case, stage))):
            text = SHORT if found.plan.dataset.of_script else text
            said.setdefault(text, {})[stage] = None
    return [f"{', '.join(where)}: {text}" for text, where in said.items()]


def queue_remark(record: Record) -> str:
    """Return a remark where a warm trial may have measured its loader's queue, else "".

    It may have where the queue is deeper than the warm-up, and where the window is not many times
    the queue and faster than the whole loop, which begins on an empty queue: all of its batches
    were made in it.  A cold trial's window is that loop.
    """
    measured, whole = trial_window(record), trial_window(record, whole=True)
    queue = max((int(rank.notes.get("queue_batches") or 0) for rank in record.ranks), default=0)
    if not queue or record.trial.cache not in WARM_STATES or measured is None or whole is None:
        return ""
    case, warmup = record.trial.case, record.ranks[0].steps.warmup
    short = measured.steps < QUEUES * queue
    faster = whole.seconds_per_sample > FASTER * measured.seconds_per_sample
    if queue <= warmup and not (short and faster):
        return ""
    return (
        f"{measured.steps} batches were measured after a warm-up of {warmup}, with a queue of "
        f"{queue}: part of them may have been made before; take "
        f"{(QUEUES + 1) * queue * case.batch * case.world_size:,} samples or more, or a smaller "
        "batch or prefetch"
    )


def _taken(found: Evidence, case: Case) -> list[str]:
    """Return how long warm training waited for batches that were there, where that was long."""
    taken_s = found.taken_s(case, *WARM_STATES)
    if taken_s <= HANDOVER_S:
        return []
    share = taken_s / median(w.step_s for w in found.train(case, *WARM_STATES))
    return [
        f"train: taking a batch that was there took {taken_s * 1e3:.1f} ms, {share:.0%} of a step "
        "(its way from another process, and freeing the one before): so much of a wait is no stall"
    ]


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
