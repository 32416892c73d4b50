"""Records -> what they mean: one JSON-able document a suite (``iobench show --json``).

Pure: reads no file, no clock.  A missing piece is None with a reason beside it, never a crash, so
an interrupted suite is analysed like a whole one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from iobench import pipelines, registry, stats
from iobench.advice import advise
from iobench.attribution import attribute
from iobench.calls import counted
from iobench.contrasts import complete_pairs, family_of, finite, judge
from iobench.errors import SpecError
from iobench.figures import DATA_STAGES, Evidence, enters, evidence, validity
from iobench.model import Case, Contrast, Plan, Record
from iobench.order import add_sums
from iobench.pairing import group_of, groups
from iobench.staging import staging

#: Version of this document.
ANALYSIS_SCHEMA = 1
BARE, UNPACKED = "bare", "unpacked"


def analyse(plan: Plan, records: Sequence[Record]) -> dict[str, Any]:
    """Return the suite's analysis as JSON types.

    Of every trial only the last attempt counts, and only VALID ones (EXPLORATORY ones where
    marked); nothing FAILED or INVALID enters a figure.
    """
    found = evidence(plan, records)
    cases = [pipelines.describe(found, case) for case in plan.cases]
    contrasts = _contrasts(found)
    document = {
        "schema": ANALYSIS_SCHEMA,
        "name": plan.name,
        "created": plan.created,
        "version": plan.version,
        "seed": plan.seed,
        "dataset": _dataset(plan),
        "notes": [*plan.notes, *_late(found)],
        "complete": plan.phase == 2
        and all(t.id in found.last and enters(found.last[t.id]) for t in plan.trials),
        "validity": validity(found, [t.id for t in plan.trials], len(records)),
        "checks": _checks(found),
        "pipelines": cases,
        "contrasts": contrasts,
        "fastest": _fastest(cases, contrasts),
    }
    document["advice"] = advise(document)
    return document


# -- validity and checks ---------------------------------------------------------------------


def _checks(found: Evidence) -> dict[str, Any]:
    """Return whether all trials saw the same samples, by ids and by the digest of their bytes."""
    ids: dict[tuple[Any, ...], dict[str, str]] = {}
    read = [r for r in found.last.values() if r.trial.stage in DATA_STAGES and enters(r)]
    summed = all(rank.ids_sum for r in read for rank in r.ranks)
    for record in read:
        case = record.trial.case
        key: tuple[Any, ...] = (_wanted(found.plan, case), case.seed)
        seen = add_sums([r.ids_sum for r in record.ranks])
        if not summed:  # results of an earlier version: rank by rank
            key = (case.samples, case.batch, case.world_size, case.order, case.seed)
            seen = " ".join(r.ids_digest for r in record.ranks)
        ids.setdefault(key, {}).setdefault(seen, record.trial.id)
    digests: dict[tuple[str, int], dict[str, str]] = {}
    for case in found.plan.cases:
        for record in found.of(case, "digest"):
            seen = " ".join(r.samples_digest for r in record.ranks)
            which = case.content, _wanted(found.plan, case)
            digests.setdefault(which, {}).setdefault(seen, case.label)
    jpeg = [seen for (content, _), seen in digests.items() if content == "jpeg"]
    return {
        "same_samples": _all_equal(ids.values()),
        "same_bytes": _all_equal(digests.values()),
        "samples_digest": next(iter(jpeg[0])) if jpeg else None,
    }


def _late(found: Evidence) -> list[str]:
    """Return a note where ranks did not begin together, with the worst trial's words."""
    late = [r for r in found.last.values() if enters(r) and r.notes.get("late")]
    if not late:
        return []
    worst = max(late, key=lambda r: float(r.notes["skew_s"]))
    return [f"{worst.notes['late']} ({worst.trial.id}; {len(late)} trials)"]


def _wanted(plan: Plan, case: Case) -> int:
    """Return how many samples a case's ranks read together: whole batches of each of them."""
    total = min(case.samples or plan.dataset.samples, plan.dataset.samples)
    return total // (case.batch * case.world_size) * case.batch * case.world_size


def _all_equal(groups: Iterable[dict[str, str]]) -> dict[str, Any]:
    groups = list(groups)
    if not groups:
        return {"ok": None, "reason": "no trial that could tell has run"}
    for seen in groups:
        if len(seen) > 1:
            return {"ok": False, "reason": "differ: " + " and ".join(list(seen.values())[:2])}
        if "" in {key.strip() for key in seen}:
            return {"ok": None, "reason": "not recorded"}
    return {"ok": True, "reason": ""}


def _dataset(plan: Plan) -> dict[str, Any]:
    d = plan.dataset
    return {
        "name": d.name,
        "source": d.source,
        "samples": d.samples,
        "bytes": d.bytes,
        "mean_bytes": d.bytes / d.samples if d.samples else None,
        "classes": d.classes,
        "digest": d.digest,
        "root": d.root,
        "in_place": d.in_place,
    }


# -- contrasts -------------------------------------------------------------------------------


def _contrasts(found: Evidence) -> list[dict[str, Any]]:
    """Judge every contrast, name the stage of a difference, and say what is not separated."""
    contrasts = found.plan.contrasts
    entries = []
    for contrast in contrasts:
        entry = judge(found, contrast, family_of(contrasts, contrast))
        entry["attribution"] = attribute(found, contrast, entry["verdict"])
        entry["calls"] = counted(found, contrast, entry["verdict"])
        entry["staging"] = staging(found, contrast, entry)
        entry["not_separated"] = _not_separated(found, contrast)
        entries.append(entry)
    return entries


def _not_separated(found: Evidence, contrast: Contrast) -> str:
    """Return why a container's own cost is not told from its software's, "" where it is.

    Only the image's files without a container, in the same blocks, separate the two.
    """
    runtimes = {c.label: c.runtime for c in found.plan.cases}
    pair = {runtimes.get(contrast.arm, ""), runtimes.get(contrast.base, "")}
    if len(pair) < 2 or UNPACKED in pair or BARE not in pair or not any(map(_has_image, pair)):
        return ""
    together = groups(found.plan.contrasts)[group_of(contrast)]
    apart = [c for c in together if UNPACKED in (runtimes.get(c.arm), runtimes.get(c.base))]
    if any(complete_pairs(found, c) for c in apart):
        return ""
    reason = (
        "runtime 'unpacked' gave no pair"
        if apart
        else "no arm runs the image's files without a container (runtime 'unpacked')"
    )
    return f"stack and container not separated: {reason}"


def _has_image(runtime: str) -> bool:
    """Return whether a runtime shows a worker an image's own files; a plug-in not here might."""
    try:
        return bool(registry.load("runtimes", runtime).isolated)
    except SpecError:
        return True


def _fastest(
    cases: Sequence[dict[str, Any]], contrasts: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return ``stage cache`` -> the fastest case, and which others were not told from it."""
    out: dict[str, Any] = {}
    cases = [p for p in cases if p["runtime"] == BARE] or cases  # runtimes have their contrasts
    for stage in ("read", "load", "train"):
        for cache in ("cold", "warm"):
            rates = {
                p["case"]: e["samples_per_s"]["value"]
                for p in cases
                if (e := p["stages"].get(stage, {}).get(cache)) and e.get("samples_per_s")
            }
            if not rates:
                continue
            ranked = sorted(rates, key=rates.__getitem__, reverse=True)
            here = [c for c in contrasts if (c["stage"], c["cache"]) == (stage, cache)]
            out[f"{stage} {cache}"] = {
                "case": ranked[0],
                "samples_per_s": finite(rates[ranked[0]]),
                "ranked": ranked,
                "judged": _backed(ranked, here),
            }
    return out


def _backed(ranked: Sequence[str], contrasts: Sequence[dict[str, Any]]) -> bool:
    """Tell whether contrasts of the first case with every other one fit its place."""
    fits: dict[str, list[bool]] = {}
    for c in contrasts:
        if ranked[0] in (c["arm"], c["base"]):
            ahead = c["arm"] == ranked[0]
            won = stats.FASTER if ahead else stats.SLOWER
            other = c["base"] if ahead else c["arm"]
            fits.setdefault(other, []).append(c["verdict"] in (won, stats.EQUIVALENT))
    return len(ranked) > 1 and all(all(fits.get(label, [False])) for label in ranked[1:])
