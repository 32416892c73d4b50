"""The tidy tables, readable by pandas: one row an attempt, and one row a pipeline's rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.analysis import page_ins
from iobench.analysis.beyond import Beyond
from iobench.analysis.evidence import Evidence, enters, evidence, startup_s, trial_window
from iobench.analysis.hosts import host_of
from iobench.analysis.ranks import probed
from iobench.analysis.rates import RateTable
from iobench.analysis.results import to_json
from iobench.analysis.steady import hit_ratio
from iobench.analysis.storage import storage_of
from iobench.core import registry
from iobench.core.cases import Case, Plan, Trial
from iobench.core.order import add_sums
from iobench.core.records import CacheProof, Record
from iobench.run.store import write_atomic

if TYPE_CHECKING:
    import pandas

#: Columns that scripts rely on, in this order; more may follow them (docs/results.md).
COLUMNS = (
    "trial", "contrast", "block", "attempt", "pipeline", "format", "loader", "trainer", "runtime",
    "launcher", "world_size", "location", "filesystem", "placement", "order", "transform", "batch",
    "workers", "stage", "cache", "status", "reason", "samples", "wall_s", "wait_s", "contention_s",
    "samples_per_s", "startup_s", "bytes_needed", "bytes_read", "bytes_storage", "resident_before",
    "resident_after", "samples_digest",
)  # fmt: skip
EXTRA = (
    "case", "arm", "position", "copy", "repeat_of", "steps", "warmup_steps", "compute_s", "trial_s",
    "started", "cache_label", "prefetch", "seed", "ready_s", "image", "probe_read_s",
    "probe_decode_s", "probe_transform_s", "host", "job", "decoder", "nodes", "sharing",
    "storage_roof", "hit_ratio", "scope", "beyond",
)  # fmt: skip

#: Of the table of rates, after the settings that its rows are grouped by and the rate.
RATE_COLUMNS = (
    "case", "cache", "stage", "trials", "standing", "binding", "regime", "reason",
    "decoding_threads",
)  # fmt: skip

#: How a formula begins in some spreadsheet.
_FORMULA = tuple("=+-@\t\r")


def trials_frame(plan: Plan, records: Sequence[Record]) -> pandas.DataFrame:
    """Return one row an attempt, in the plan's order; planned trials that have not run are absent.

    docs/results.md defines the columns.  What was not measured is empty.
    """
    import pandas

    found = evidence(plan, records)
    place = {t.id: i for i, t in enumerate(plan.trials)}
    ordered = sorted(records, key=lambda r: (place.get(r.trial.id, len(place)), r.attempt))
    cases = {r.trial.case.label: r.trial.case for r in ordered}
    steps = {label: _step_s(found, case) for label, case in cases.items()}
    mounts = {label: storage_of(found, case) for label, case in cases.items()}
    roofs = {label: mount.binding if mount else None for label, mount in mounts.items()}
    twins = _twins(records)
    beyond = Beyond(found)
    rows = [
        _row(found, r, steps[r.trial.case.label], twins, roofs[r.trial.case.label])
        | {"beyond": beyond.label(r) if r.cache.label else None}
        for r in ordered
    ]
    frame = pandas.DataFrame(rows, columns=[*COLUMNS, *EXTRA]).convert_dtypes()
    # seconds and fractions stay floats where every value happens to be whole
    floats = [
        name for name in (*COLUMNS, *EXTRA) if name.endswith("_s") or name.startswith("resident_")
    ]
    return frame.astype(dict.fromkeys(floats, "Float64"))


def write_csv(path: Path, plan: Plan, records: Sequence[Record]) -> None:
    """Write :func:`trials_frame` to ``path`` as a whole or not at all (ResultsError).

    Text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    write_atomic(path, _text(trials_frame(plan, records)))


def rates_text(table: RateTable) -> str:
    """Return one row a case and cache state as CSV; docs/results.md defines the columns."""
    import pandas

    rows = [to_json(row) for row in table.rows]
    flat = [{**row.pop("by"), **_interval(row.pop("samples_per_s")), **row} for row in rows]
    columns = (*table.by, *_interval(None), *RATE_COLUMNS)
    return _text(pandas.DataFrame(flat, columns=columns).convert_dtypes())


def _interval(rate: Mapping[str, Any] | None) -> dict[str, Any]:
    names = {"samples_per_s": "value", "low": "low", "high": "high"}
    return {column: rate and rate[name] for column, name in names.items()}


def _text(frame: pandas.DataFrame) -> str:
    texts: list[str] = list(frame.select_dtypes("string").columns)
    for name in texts:
        frame[name] = frame[name].map(_no_formula, na_action="ignore")
    return frame.to_csv(index=False)


def _no_formula(text: str) -> str:
    return f"'{text}" if text[:1] in _FORMULA and len(text) > 1 else text


def _twins(records: Sequence[Record]) -> dict[tuple[str, ...], str]:
    """Return (case, its samples) -> what the untimed twin found in those samples' bytes.

    The twin is one rank, which reads once what all ranks of the case read, in each epoch.
    """
    epochs = {r.trial.all_epochs for r in records}
    return {
        _who(r, count): " ".join(rank.samples_digest for rank in r.ranks)
        for r in records
        if r.trial.stage == "digest" and enters(r)
        for count in epochs
    }


def _who(record: Record, epochs: int = 1) -> tuple[str, ...]:
    together = add_sums([rank.ids_sum for rank in record.ranks] * epochs)
    if together:
        return record.trial.case.label, together
    return (record.trial.case.label, *(rank.ids_digest for rank in record.ranks))


def _row(
    found: Evidence,
    record: Record,
    step_s: float | None,
    twins: Mapping[tuple[str, ...], str],
    roof: str | None,
) -> dict[str, Any]:
    trial, case, proof = record.trial, record.trial.case, record.cache
    return {
        **{
            name: getattr(of, name)
            for of in (case, trial, record, proof)
            for name in _SAME[type(of)]
        },
        **_measured(record, step_s if found.at_home(record) else None),
        "host": host_of(record) or None,
        "job": record.job or None,
        "trial": trial.id,
        "contrast": trial.contrast or None,
        "filesystem": record.mount.get("filesystem") or record.mount.get("fstype"),
        "reason": "; ".join(record.reasons) or None,
        "startup_s": startup_s(record),
        "bytes_needed": proof.bytes_needed or sum(r.bytes_needed for r in record.ranks) or None,
        "bytes_read": proof.bytes_read if record.ranks and proof.bytes_needed else None,
        "bytes_storage": page_ins.data_bytes(record),
        "samples_digest": twins.get(_who(record)),
        "case": case.label,
        "arm": trial.arm or None,
        "repeat_of": trial.repeat_of or None,
        "trial_s": record.wall_s,
        "cache_label": proof.label or None,
        "ready_s": record.ready_s or None,
        "image": case.image if case.runtime != "bare" else None,
        "decoder": registry.loading(case).get("decoders"),
        "storage_roof": roof if trial.cache == "cold" else None,
        "hit_ratio": hit_ratio(record),
        "scope": record.runtime.get("scope"),
        **_probed(record),
    }


def _probed(record: Record) -> dict[str, float]:
    """Return the mean seconds a sample of each part of a serial probe; {} of other trials."""
    parts = ((f"probe_{part}", s) for part, s in probed(record).items())
    return {name: sum(s) / len(s) for name, s in parts if s and name in EXTRA}


#: Columns that are an attribute of the same name.
_SAME = {
    Case: ("pipeline", "format", "loader", "trainer", "runtime", "launcher", "world_size",
           "location", "placement", "order", "transform", "batch", "workers", "prefetch", "seed",
           "nodes", "sharing"),
    Trial: ("block", "stage", "cache", "position", "copy"),
    Record: ("attempt", "status", "started"),
    CacheProof: ("resident_before", "resident_after"),
}  # fmt: skip


def _measured(record: Record, step_s: float | None) -> dict[str, Any]:
    if fio := record.ceiling:
        return {
            "samples": fio.get("samples"),
            "wall_s": fio.get("runtime_s"),
            "samples_per_s": fio.get("samples_per_s"),
        }
    window = trial_window(record)
    if window is None:
        return {}
    contention = None
    if record.trial.stage == "train" and step_s is not None:
        contention = window.compute_s - window.steps * step_s
    return {
        "samples": window.samples,
        "wall_s": window.wall_s,
        "wait_s": window.wait_s,
        "contention_s": contention,
        "compute_s": window.compute_s,
        "samples_per_s": window.samples / window.wall_s,
        "steps": window.steps,
        "warmup_steps": record.ranks[0].steps.warmup,
    }


def _step_s(found: Evidence, case: Case) -> float | None:
    """Return the compute rung's seconds a step for this case, None before it has run."""
    windows, _ = found.compute(case)
    return sum(w.step_s for w in windows) / len(windows) if windows else None
