"""One case's trainer under Williams' roofline: docs/method.md, "The trainer's roofline"."""

from __future__ import annotations

from statistics import fmean

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
    records = found.shared(case, "roof")
    notes = [r.ranks[0].notes["roof"] for r in records if r.ranks and r.ranks[0].notes.get("roof")]
    if not notes:
        return None
    flop = fmean(note["flop_per_step"] / note["step_samples"] for note in notes)
    roofs = Roofs(
        max(note["peak_flops"] for note in notes),
        max(note["memory_bytes_per_s"] for note in notes),
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


def _states(found: Evidence, case: Case) -> list[str]:
    return sorted({cache for stage, cache in found.rungs(case) if stage == "train"})
