"""What a job's first minute costs: how its ranks start, their software cold or warm.

docs/method.md, "Start-up".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from iobench.analysis.evidence import Evidence, standing
from iobench.analysis.scale_results import StartResult
from iobench.core.cases import Case
from iobench.core.records import Record
from iobench.equations import stats


def starts(found: Evidence) -> list[StartResult]:
    """Return one entry for each case and cache state with the stage ``start``.

    By what they start from, in the order of the cases, then by ranks.
    """
    out = [
        _result(case, cache, records)
        for case in found.plan.cases
        for cache in ("cold", "warm")
        if (records := found.of(case, "start", cache))
    ]
    kinds = list(dict.fromkeys((one.runtime, one.form) for one in out))
    return sorted(out, key=lambda s: (kinds.index((s.runtime, s.form)), s.nodes, s.ranks))


def _result(case: Case, cache: str, records: Sequence[Record]) -> StartResult:
    software = [r.notes.get("software") or {} for r in records]
    process, imports = _parts(records)
    return StartResult(
        case=case.label,
        runtime=case.runtime,
        form=str(records[0].runtime.get("form") or ""),
        nodes=case.nodes,
        ranks=case.world_size,
        cache=cache,
        seconds=stats.t_interval([r.ready_s for r in records]),
        before_s=max(0.0, fmean(r.ready_s for r in records) - process),
        python_s=process - imports,
        imports_s=imports,
        bytes=_mean(s.get("bytes") for s in software),
        fetched=_mean(s.get("fetched") for s in software),
        filesystem=str(records[0].mount.get("fstype") or ""),
        standing=standing(len(records), records),
    )


def _parts(records: Iterable[Record]) -> tuple[float, float]:
    """Return seconds from the start of the slowest rank's interpreter to the end of its imports,
    and of the imports: means over the repeats."""
    slowest = [max((k.startup for k in r.ranks), key=lambda s: s.process_s) for r in records]
    return fmean(s.process_s for s in slowest), fmean(s.imports_s for s in slowest)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return fmean(known) if known else None
