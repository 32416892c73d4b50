"""report.html: one file, no request to anywhere, readable on a phone and on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iobench.contrasts import finite
from iobench.figures import Evidence, evidence, step_waits_s
from iobench.model import STAGES, Case, Plan, Record
from iobench.report import plots, words
from iobench.store import write_atomic

TEMPLATE = "report.html.j2"
#: Charts of this many pipelines; the tables hold them all.
CHARTED = 8
MIB = 2**20


def write(path: Path, plan: Plan, records: Sequence[Record], analysis: Mapping[str, Any]) -> None:
    """Write the report of ``analysis`` to ``path`` as a whole or not at all (ResultsError)."""
    write_atomic(path, render(plan, records, analysis))


def render(plan: Plan, records: Sequence[Record], analysis: Mapping[str, Any]) -> str:
    """Return the report as HTML."""
    import jinja2

    found = evidence(plan, records)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals["words"] = words
    measured = [p for p in analysis["pipelines"] if words.rungs(p)]
    measured = [p for p in measured if words.rungs(p) > 1] or measured  # others: contrasts alone
    across = [c for c in analysis["contrasts"] if "runtime" in c["over"]]
    return environment.get_template(TEMPLATE).render(
        a=analysis,
        plan=plan,
        cases=measured,
        alone=[p for p in analysis["pipelines"] if p not in measured],
        across=across,
        others=[c for c in analysis["contrasts"] if c not in across],
        identities=_identities(across),
        findings=_findings(measured),
        advice=words.grouped_advice(analysis["advice"]),
        charts=_charts(found, measured, analysis),
        proofs=_proofs(found),
        facts=_facts(found),
    )


def _identities(across: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return runtime -> which image it ran, how it was mounted, which version of the runtime."""
    found: dict[str, Mapping[str, Any]] = {}
    for contrast in across:
        for side in ("arm", "base"):
            if contrast["runtimes"][side]:
                found.setdefault(contrast[f"{side}_name"], contrast["runtimes"][side])
    return found


def _charts(
    found: Evidence, cases: Sequence[Mapping[str, Any]], analysis: Mapping[str, Any]
) -> dict[str, Any]:
    shown = cases[:CHARTED]
    labels = {c["case"] for c in shown}
    waits = {
        case.label: {
            cache: step_waits_s(found.of(case, "train", cache)) for cache in ("cold", "warm", "-")
        }
        for case in found.plan.cases
        if case.label in labels
    }
    ladders = [(c["case"], plots.ladder(c, analysis)) for c in shown]
    return {
        "ladders": [(name, svg) for name, svg in ladders if svg],
        "stalls": plots.stall_breakdown(shown, analysis),
        "roofline_cold": plots.roofline(shown, "cold"),
        "roofline_warm": plots.roofline(shown, "warm"),
        "forest": plots.forest([c for c in analysis["contrasts"] if "runtime" not in c["over"]]),
        "forest_runtimes": plots.forest(
            [c for c in analysis["contrasts"] if "runtime" in c["over"]]
        ),
        "waits": plots.waits(waits),
        "left_out": len(cases) - len(shown),
    }


def _findings(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one finding a reason: which pipelines, which cache states, what binds."""
    grouped: dict[tuple[str, str], dict[str, list[str]]] = {}
    for case in cases:
        for cache in ("cold", "warm"):
            limit = case["limits"][cache]
            if limit["regime"]:
                key = limit["regime"], limit["words"].split(";")[0]
                grouped.setdefault(key, {}).setdefault(case["case"], []).append(cache)
    return [
        {"regime": regime, "what": what, "who": words.who(who)}
        for (regime, what), who in grouped.items()
    ]


def _proofs(found: Evidence) -> list[dict[str, Any]]:
    """Return one row a case, rung and cache state: how many count, and the cache's evidence."""
    rows = []
    for case in found.plan.cases:
        keys = {
            (t.stage, t.cache): None
            for t in found.plan.trials
            if t.case.label == case.label and t.stage in STAGES
        }
        for stage, cache in sorted(keys, key=lambda k: (STAGES.index(k[0]), k[1])):
            rows.append(_proof(found, case, stage, cache))
    return rows


def _proof(found: Evidence, case: Case, stage: str, cache: str) -> dict[str, Any]:
    planned = [
        t.id
        for t in found.plan.trials
        if t.case.label == case.label and (t.stage, t.cache) == (stage, cache)
    ]
    ran = [found.last[i] for i in planned if i in found.last]
    good = found.of(case, stage, cache)
    crossed = [
        r.cache.bytes_storage / r.cache.bytes_needed
        for r in good
        if r.cache.bytes_storage is not None and r.cache.bytes_needed
    ]
    return {
        "case": case.label,
        "rung": f"{stage} {cache}".removesuffix(" -"),
        "planned": len(planned),
        "valid": sum(r.status == "VALID" for r in ran),
        "exploratory": sum(r.status == "EXPLORATORY" for r in ran),
        "bad": sum(r.status in ("INVALID", "FAILED") for r in ran),
        "label": ", ".join(sorted({r.cache.label for r in good if r.cache.label})),
        "before": _range([r.cache.resident_before for r in good]),
        "after": _range([r.cache.resident_after for r in good]),
        "crossed": _range(crossed),
        "beyond": ", ".join(sorted({r.cache.beyond for r in good if r.cache.label})),
        "reasons": sorted({x for r in ran if r.status != "VALID" for x in r.reasons}),
    }


def _range(values: Sequence[float | None]) -> str:
    known = [100 * v for v in values if v is not None and finite(v) is not None]
    if not known:
        return ""
    low, high = f"{min(known):.1f}", f"{max(known):.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def _facts(found: Evidence) -> list[tuple[str, str]]:
    """Return what the first worker that ran says of its machine, flattened."""
    facts: list[tuple[str, str]] = []
    for record in found.last.values():
        for rank in record.ranks:
            if rank.fingerprint and record.trial.stage in ("load", "train", "read"):
                mount = [(f"data mount {k}", str(v)) for k, v in record.mount.items()]
                return facts + _flat(rank.fingerprint, "") + mount
    return facts


def _flat(value: Mapping[str, Any], prefix: str) -> list[tuple[str, str]]:
    rows = []
    for key, item in value.items():
        name = f"{prefix} {key}".strip().replace("_", " ")
        if isinstance(item, Mapping):
            rows += _flat(item, name)
        elif item not in (None, "", []):
            rows.append((name, ", ".join(map(str, item)) if isinstance(item, list) else str(item)))
    return rows
