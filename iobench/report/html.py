"""report.html: one file, no request to anywhere, readable on a phone and on paper."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.advise.explain import advise
from iobench.analysis import page_ins, rates
from iobench.analysis.beyond import Beyond
from iobench.analysis.case_results import CaseResult
from iobench.analysis.confounders import flattened
from iobench.analysis.contrast_results import ContrastResult
from iobench.analysis.evidence import Evidence, enters, evidence, step_waits, validity
from iobench.analysis.results import SuiteResult
from iobench.core import stages
from iobench.core.cases import Case, Plan
from iobench.core.records import NodeRecord, Record
from iobench.report import (
    answer,
    compute_plot,
    contrast_words,
    numbers,
    plots,
    rate_plot,
    scale_plot,
    scale_words,
    start_plot,
    start_words,
    storage_words,
    trainer_words,
    tune_plot,
    tune_words,
    words,
)
from iobench.run.store import write_atomic
from iobench.tune.answer import TuneResult

if TYPE_CHECKING:
    import jinja2

TEMPLATE = "report.html.j2"
#: Charts of this many pipelines; the tables hold them all.
CHARTED = 8
#: Nodes that are shown of one rung.
NODES = 16
_NodeRow = tuple[str, str, str]  # case, rung, node


def write(
    path: Path, plan: Plan, records: Sequence[Record], suite: SuiteResult,
    tuned: TuneResult | None = None,
) -> None:  # fmt: skip
    """Write the report of ``suite`` to ``path`` as a whole or not at all (ResultsError)."""
    write_atomic(path, render(plan, records, suite, tuned))


def render(
    plan: Plan, records: Sequence[Record], suite: SuiteResult, tuned: TuneResult | None = None
) -> str:
    """Return the report as HTML; it opens with what a search found, where the suite is one."""
    found = evidence(plan, records)
    measured = [p for p in suite.pipelines if words.rungs(p)]
    measured = [p for p in measured if words.rungs(p) > 1] or measured  # others: contrasts alone
    across = [c for c in suite.contrasts if "runtime" in c.over]
    return _template().render(
        a=suite,
        answers=() if tuned else answer.sentences(suite.contrasts),
        tuned=tuned,
        tuned_svg=tune_plot.tried(tuned) if tuned else "",
        cases=measured,
        parts=list(dict.fromkeys(part for p in measured if p.probe for part in p.probe.seconds)),
        alone=[p for p in suite.pipelines if p not in measured],
        across=across,
        others=[c for c in suite.contrasts if c not in across],
        identities=_identities(across),
        findings=_findings(measured),
        advice=words.grouped_advice(advise(suite)),
        charts=_charts(found, measured, suite),
        studies=[(t, s, scale_plot.scaling(s)) for t, s in scale_words.titles(suite.studies)],
        start_svg=start_plot.starts(suite.starts),
        proofs=_proofs(found),
        nodes=_nodes(found),
        node_count=len({n.node for r in found.last.values() for n in r.nodes}),
        facts=_facts(found),
    )


@functools.cache
def _template() -> jinja2.Template:
    """Return the page's template, compiled once: it takes as long as some of the plots."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {
        "words": words,
        "contrast_words": contrast_words,
        "numbers": numbers,
        "scale_words": scale_words,
        "start_words": start_words,
        "storage_words": storage_words,
        "trainer_words": trainer_words,
        "tune_words": tune_words,
    }
    return environment.get_template(TEMPLATE)


def _identities(across: Sequence[ContrastResult]) -> dict[str, Mapping[str, Any]]:
    """Return runtime -> which image it ran, how it was mounted, which version of the runtime."""
    found: dict[str, Mapping[str, Any]] = {}
    for contrast in across:
        for name, side in ((contrast.arm_name, "arm"), (contrast.base_name, "base")):
            if contrast.runtimes[side]:
                found.setdefault(name, contrast.runtimes[side])
    return found


def _charts(found: Evidence, cases: Sequence[CaseResult], suite: SuiteResult) -> dict[str, Any]:
    shown = cases[:CHARTED]
    across = any("runtime" in c.over for c in suite.contrasts)
    labels = {c.case for c in shown}
    waits = {
        case.label: {
            c: step_waits(found.of(case, "train", c)).seconds.tolist()
            for c in ("cold", "warm", "-")
        }
        for case in found.plan.cases
        if case.label in labels
    }
    ladders = [(c.case, plots.ladder(c, suite)) for c in shown]
    table = rates.by(suite)
    return {
        "ladders": [(name, svg) for name, svg in ladders if svg],
        "stalls": plots.stall_breakdown(shown, suite),
        "roofline_cold": plots.roofline(shown, "cold"),
        "roofline_warm": plots.roofline(shown, "warm"),
        "compute_roof": compute_plot.compute(suite.pipelines),
        "trajectories": [
            (f"{kind}-{cache}", f"{title}, {cache}", svg)
            for cache in ("cold", "warm")
            for kind, title, draw in (
                ("knobs", "FLOP/s as a knob grows", compute_plot.knobs),
                ("pipeline", "Trajectories under the roofs", compute_plot.pipeline),
            )
            if (svg := draw([t for t in suite.trajectories if t.cache == cache]))
        ],
        "forest": plots.forest([c for c in suite.contrasts if "runtime" not in c.over]),
        "forest_runtimes": plots.forest([c for c in suite.contrasts if "runtime" in c.over]),
        "waits": plots.waits(waits),
        "rates": "" if across or found.plan.dataset.of_script else rate_plot.rates(table),
        "rates_note": table.note,
        "left_out": len(cases) - len(shown),
    }


def _findings(cases: Sequence[CaseResult]) -> list[dict[str, Any]]:
    """Return one finding a reason: which pipelines, which cache states, what binds."""
    grouped = words.grouped(
        ((limit.regime, limit.words.split(";")[0]), (case.case, cache))
        for case in cases
        for cache in ("cold", "warm")
        if (limit := case.limits[cache]).regime and limit.words
    )
    return [
        {"regime": regime, "what": what, "who": words.who(who)}
        for (regime, what), who in grouped.items()
    ]


def _proofs(found: Evidence) -> list[dict[str, Any]]:
    """Return one row a case, rung and cache state: how many count, and the cache's evidence."""
    rows, rungs, beyond = [], stages.rungs(), Beyond(found)
    for case in found.plan.cases:
        planned = [rung for rung in found.rungs(case) if rung[0] in rungs]
        for stage, cache in sorted(planned, key=lambda k: (rungs.index(k[0]), k[1])):
            rows.append(_proof(found, case, stage, cache, beyond))
    return rows


def _proof(found: Evidence, case: Case, stage: str, cache: str, beyond: Beyond) -> dict[str, Any]:
    planned = [t.id for t in found.planned(case) if (t.stage, t.cache) == (stage, cache)]
    ended = validity(found, planned)
    good = found.of(case, stage, cache)
    crossed = [
        stored / r.cache.bytes_needed
        for r in good
        if (stored := page_ins.data_bytes(r)) is not None and r.cache.bytes_needed
    ]
    return {
        "case": case.label,
        "rung": f"{stage} {cache}".removesuffix(" -"),
        "planned": ended.planned,
        "valid": ended.statuses["VALID"],
        "exploratory": ended.statuses["EXPLORATORY"],
        "bad": ended.statuses["INVALID"] + ended.statuses["FAILED"],
        "label": ", ".join(sorted({r.cache.label for r in good if r.cache.label})),
        "before": _range([r.cache.resident_before for r in good]),
        "after": _range([r.cache.resident_after for r in good]),
        "crossed": _range(crossed),
        "beyond": ", ".join(sorted({_beyond(r, beyond) for r in good if r.cache.label})),
    }


def _nodes(found: Evidence) -> list[dict[str, Any]]:
    """Return one row a node, case, rung and cache state, of cases that run on several nodes.

    Of many nodes those with the worst proof: the most resident before a cold trial, or the least.
    """
    rows: dict[_NodeRow, list[NodeRecord]] = {}
    for record in found.last.values():
        trial = record.trial
        rung = f"{trial.stage} {trial.cache}".removesuffix(" -")
        for node in record.nodes if enters(record) and trial.case.nodes > 1 else ():
            rows.setdefault((trial.case.label, rung, node.node), []).append(node)
    return [
        {
            "case": case,
            "rung": rung,
            "node": name,
            "ranks": _spans(nodes[0].ranks),
            "trials": len(nodes),
            "before": _range([n.cache.resident_before for n in nodes]),
            "after": _range([n.cache.resident_after for n in nodes]),
            "crossed": _range(
                [
                    n.cache.bytes_storage / n.cache.bytes_needed
                    for n in nodes
                    if n.cache.bytes_storage is not None and n.cache.bytes_needed
                ]
            ),
            "mount": " ".join(str(nodes[0].mount.get(key, "")) for key in ("fstype", "device")),
        }
        for (case, rung, name), nodes in _worst(rows)
    ]


def _worst(rows: Mapping[_NodeRow, list[NodeRecord]]) -> list[tuple[_NodeRow, list[NodeRecord]]]:
    """Return the rows that are shown: of each case and rung at most ``NODES`` nodes."""
    rungs: dict[tuple[str, str], list[_NodeRow]] = {}
    for row in rows:
        rungs.setdefault(row[:2], []).append(row)
    shown: list[_NodeRow] = []
    for (_, rung), found in rungs.items():
        if len(found) > NODES:
            sign = -1 if rung.endswith("cold") else 1
            known = [n.cache.resident_before or 0.0 for row in found for n in rows[row][:1]]
            order = sorted(range(len(found)), key=lambda k: sign * known[k])
            found = [found[k] for k in sorted(order[:NODES])]
        shown += found
    return [(row, rows[row]) for row in shown]


def _spans(ranks: Sequence[int]) -> str:
    """Return ranks as a reader wants them: ``0-7, 12``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    return ", ".join("-".join(map(str, span)) for span in spans)


def _beyond(record: Record, beyond: Beyond) -> str:
    known = beyond.label(record)
    return f"{record.cache.unseen}; {known}" if record.cache.unseen else known


def _range(values: Sequence[float | None]) -> str:
    known = [100 * v for v in values if v is not None and math.isfinite(v)]
    if not known:
        return ""
    low, high = f"{min(known):.1f}", f"{max(known):.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def _facts(found: Evidence) -> list[tuple[str, str]]:
    """Return what the first worker on the figures' host says of its machine, flattened."""
    for record in filter(found.at_home, found.last.values()):
        for rank in record.ranks:
            if rank.fingerprint and record.trial.stage in ("load", "train", "read"):
                facts = flattened(rank.fingerprint, " ").items()
                known = [(k.replace("_", " "), v) for k, v in facts if v not in (None, "", [])]
                known += [(f"data mount {k}", v) for k, v in record.mount.items()]
                return [(k, numbers.plain(v)) for k, v in known]
    return []
