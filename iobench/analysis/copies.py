"""What handing a batch to a GPU costs: the rung ``h2d``."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from iobench.analysis.evidence import Evidence, standing, trial_window
from iobench.analysis.trainer_results import CopyResult
from iobench.core.cases import Case
from iobench.equations import stats
from iobench.equations.stalls import Window


def copies(found: Evidence, case: Case, compute: Sequence[Window]) -> CopyResult | None:
    """Return the cost of a copy; None without ``h2d``.  ``compute``: that rung's windows."""
    records = found.shared(case, "h2d")
    each = [w.step_s for r in records if (w := trial_window(r)) is not None]
    notes = [rank.notes["h2d"] for r in records for rank in r.ranks if "h2d" in rank.notes]
    if not each or not notes:
        return None
    seconds, nbytes = stats.t_interval(each), int(notes[0]["bytes"])
    step_s = fmean(w.step_s for w in compute) if compute else None
    return CopyResult(
        seconds=seconds,
        bytes=nbytes,
        bytes_per_s=nbytes / seconds.value,
        pinned=all(note["pinned"] for note in notes),
        share=seconds.value / step_s if step_s else None,
        standing=standing(len(each), records),
    )
