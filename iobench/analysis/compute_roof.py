"""One case's trainer under Williams' roofline: docs/method.md, "The trainer's roofline"."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from iobench.analysis.evidence import Evidence
from iobench.analysis.trainer_results import ComputeRoof
from iobench.core.cases import Case
from iobench.equations import stats
from iobench.equations.roofline import Roofs

#: Counters of a memory controller (uncore_imc, AMD's data fabric) are the whole machine's, and few
#: virtual machines show them; none is read.
NOT_COUNTED = "memory traffic was not counted: no counter of the memory controllers is read"


def compute_roof(found: Evidence, case: Case) -> ComputeRoof | None:
    """Return the roofs of what a case computes on, and where it is; None without ``roof``."""
    notes = _notes(found, case)
    if not notes:
        return None
    flop = fmean(note["flop_per_step"] / note["step_samples"] for note in notes)
    like = [
        n for other in found.plan.cases if _same_cores(other, case) for n in _notes(found, other)
    ]
    most, by = notes[0]["threads"], notes[0]["by"]  # more threads have no fewer cores
    like = [note for note in like if note["by"] == by and note["threads"] <= most]
    roofs = Roofs(
        max(note["peak_flops"] for note in like),
        max(note["memory_bytes_per_s"] for note in like),
    )
    compute = [w.seconds_per_sample for w in found.compute(case)[0]]
    reached = flop / fmean(compute) if compute else None
    trained = {
        c: [w.seconds_per_sample for w in found.train(case, c)] for c in _states(found, case)
    }
    return ComputeRoof(
        flop_per_sample=flop,
        threads=int(notes[0]["threads"]),
        peak_flops=roofs.peak,
        memory_bytes_per_s=roofs.bandwidth,
        ridge=roofs.ridge,
        by=str(notes[0]["by"]),
        compute_flops=reached,
        train_flops={
            c: flop * stats.t_interval(t).inverse().value for c, t in trained.items() if t
        },
        least_intensity=None if reached is None else roofs.least_intensity(reached),
        intensity=None,
        traffic=NOT_COUNTED,
    )


def _notes(found: Evidence, case: Case) -> list[Mapping[str, Any]]:
    """Return what the trials of ``roof`` that serve a case have noted."""
    every = [r.ranks[0].notes.get("roof") for r in found.shared(case, "roof") if r.ranks]
    return [note for note in every if note]


def _same_cores(one: Case, other: Case) -> bool:
    """Return whether trainers of two cases, with equal threads, compute on the same thing."""
    device, key = "cpu", "device"
    return one.trainer_options.get(key, device) == other.trainer_options.get(key, device) and (
        one.runtime,
        one.cpus,
    ) == (other.runtime, other.cpus)


def _states(found: Evidence, case: Case) -> list[str]:
    return sorted({cache for stage, cache in found.rungs(case) if stage == "train"})
