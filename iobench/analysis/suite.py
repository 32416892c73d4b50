"""Records -> what they mean: the analysis of one suite.

Pure: reads no file, no clock.  A figure that is missing is None with a reason beside it, so an
interrupted suite is analysed like a whole one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from iobench.analysis import notes, undecided
from iobench.analysis.attribution import attribute
from iobench.analysis.case_results import CaseResult
from iobench.analysis.cases import decoding_threads, describe
from iobench.analysis.contrast_results import ContrastResult
from iobench.analysis.evidence import Evidence, enters, evidence, validity, why_missing
from iobench.analysis.pairs import complete_pairs, is_of
from iobench.analysis.payback import staging
from iobench.analysis.results import CheckResult, Checks, DatasetResult, FastestResult, SuiteResult
from iobench.analysis.starts import starts
from iobench.analysis.stragglers import stragglers
from iobench.analysis.studies import studies
from iobench.analysis.syscalls import counted
from iobench.analysis.time_spent import time_spent
from iobench.analysis.trajectories import trajectories
from iobench.analysis.verdicts import judged
from iobench.core import registry, stages
from iobench.core.cases import Case, Contrast, Plan, alike
from iobench.core.order import add_sums, remainder
from iobench.core.own_images import is_own
from iobench.core.records import Record
from iobench.data import accounting
from iobench.equations import stats
from iobench.equations.signed_rank import FLOOR_PAIRS
from iobench.plan.blocks import group_of, groups

#: Version of the document that ``analysis.json`` holds.
ANALYSIS_SCHEMA = 1
BARE, UNPACKED = "bare", "unpacked"
#: Keys of a case whose differences are numbers of threads and batches: one over them alone is none.
SETS_THREADS = {"workers", "prefetch", "loader_options"}


def analyse(plan: Plan, records: Sequence[Record]) -> SuiteResult:
    """Return the suite's analysis, of the last attempt at every trial."""
    found = evidence(plan, records)
    cases = [describe(found, case) for case in plan.cases]
    results = judged(found)
    contrasts = [_contrast(found, contrast, results[contrast.id]) for contrast in plan.contrasts]
    data = plan.dataset
    mean_bytes = data.bytes / data.samples if data.samples else None
    return alike(
        SuiteResult,
        plan,
        schema=ANALYSIS_SCHEMA,
        dataset=alike(DatasetResult, data, mean_bytes=mean_bytes, files=accounting.of(data)),
        notes=notes.notes(found),
        hosts=notes.hosts(found),
        complete=plan.phase == 2
        and all(t.id in found.last and enters(found.last[t.id]) for t in plan.trials),
        validity=validity(found, [t.id for t in plan.trials], len(records)),
        checks=_checks(found),
        pipelines=cases,
        contrasts=contrasts,
        fastest=_fastest(cases, contrasts),
        studies=studies(found),
        trajectories=trajectories(found.plan.cases, cases),
        stragglers=stragglers(found),
        starts=starts(found),
        time=time_spent(records),
        missing=_missing(found, contrasts),
    )


def _missing(found: Evidence, contrasts: Sequence[ContrastResult]) -> list[str]:
    """Return the answers that the plan asks for and the records do not give, with the reason.

    A single trial without a result is none where others answer.
    """
    asked = dict.fromkeys(
        (t.case.label, t.stage, t.cache) for t in found.plan.trials if not t.contrast
    )
    by_label = {case.label: case for case in found.plan.cases}
    lines = [
        f"{label} {why_missing(found, by_label[label], stage, cache)}"
        for label, stage, cache in asked
        if label in by_label and not found.of(by_label[label], stage, cache)
    ]
    for result in contrasts:
        few = result.pairs < FLOOR_PAIRS <= result.pairs_planned
        open_ = result.outcome.verdict == stats.NO_VERDICT and (few or not result.final)
        if result.outcome.ratio is None or open_:
            what = f"{result.arm} against {result.base}, {result.stage} {result.cache}"
            lines.append(f"{what}: {result.outcome.note}{_lost(found, result)}")
    return lines if found.plan.phase == 2 else [*lines, "the comparisons have not begun"]


def _lost(found: Evidence, result: ContrastResult) -> str:
    """Return why a contrast lacks pairs: a reason of a trial of its arms, in brackets."""
    mine = {contrast.id: contrast for contrast in found.plan.contrasts}[result.id]
    for record in found.last.values():
        ours = is_of(record.trial, mine) and record.trial.arm in (mine.arm, mine.base)
        if ours and record.reasons and not enters(record):
            return f" ({record.reasons[0]})"
    return ""


def _checks(found: Evidence) -> Checks:
    """Return whether all trials saw the same samples, by ids and by the digest of their bytes."""
    ids: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    read = [r for r in found.last.values() if r.trial.stage in stages.contrasted() and enters(r)]
    read = [r for r in read if not r.trial.least]  # one that ended early saw a part of them
    summed = all(rank.ids_sum for r in read for rank in r.ranks)
    for record in read:
        case = record.trial.case
        key: tuple[Any, ...] = (_wanted(found.plan, case), case.seed, record.trial.all_epochs)
        seen = add_sums([r.ids_sum for r in record.ranks])
        if not summed:  # results of an earlier version: rank by rank
            key = (case.samples, case.batch, case.world_size, case.order, case.seed)
            seen = " ".join(r.ids_digest for r in record.ranks)
        ids.setdefault(key, []).append((seen, record.trial.id))
    digests: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for case in found.plan.cases:
        for record in found.of(case, "digest"):
            seen = " ".join(r.samples_digest for r in record.ranks)
            which = case.content, _wanted(found.plan, case)
            digests.setdefault(which, []).append((seen, case.label))
    jpeg = [found for (content, _), found in digests.items() if content == "jpeg"]
    return Checks(
        same_samples=_all_equal(ids.values()),
        same_bytes=_all_equal(digests.values()),
        samples_digest=jpeg[0][0][0] if jpeg else None,
    )


def _wanted(plan: Plan, case: Case) -> int:
    """Return how many samples a case's ranks read together: whole batches of each of them."""
    total = min(case.samples or plan.dataset.samples, plan.dataset.samples)
    return total - remainder(total, case.batch, case.world_size)


def _all_equal(groups: Iterable[Sequence[tuple[str, str]]]) -> CheckResult:
    """Return whether what was seen is equal in each group of (what, who saw it)."""
    groups = list(groups)
    if not groups:
        return CheckResult(None, "no trial that could tell has run")
    counts = sum(map(len, groups)), len(groups)
    for group in groups:
        first: dict[str, str] = {}
        for seen, who in group:
            first.setdefault(seen, who)
        if len(first) > 1:
            return CheckResult(False, "differ: " + " and ".join([*first.values()][:2]), *counts)
        if "" in {seen.strip() for seen in first}:
            return CheckResult(None, "not recorded", *counts)
    return CheckResult(True, "", *counts)


def _contrast(found: Evidence, contrast: Contrast, result: ContrastResult) -> ContrastResult:
    """Add to a contrast's verdict the stage of a difference, and what is not separated."""
    return dataclasses.replace(
        result,
        attribution=attribute(found, contrast, result.outcome.verdict),
        calls=counted(found, contrast, result.outcome.verdict),
        staging=staging(found, contrast, result.outcome),
        not_separated=_not_separated(found, contrast),
        decoding_threads=_unequal_threads(found, result),
        block_s=undecided.block_s(found, contrast),
        causes=undecided.causes(found, contrast, result),
    )


def _unequal_threads(found: Evidence, result: ContrastResult) -> Sequence[int]:
    """Return how many threads read and decode in arm and base, () where equal or under study."""
    cases = {c.label: c for c in found.plan.cases}
    if result.arm not in cases or result.base not in cases or {*result.over} <= SETS_THREADS:
        return ()
    counts = [decoding_threads(cases[label]) for label in (result.arm, result.base)]
    return counts if all(counts) and counts[0] != counts[1] else ()


def _not_separated(found: Evidence, contrast: Contrast) -> str:
    """Return why the cost of a container is not separated from that of its software, else "".

    Only the image's files without a container, in the same blocks, separate the two.
    """
    runtimes = {c.label: c.runtime for c in found.plan.cases}
    images = {c.label: c.image for c in found.plan.cases}
    pair = {runtimes.get(contrast.arm, ""), runtimes.get(contrast.base, "")}
    if len(pair) < 2 or UNPACKED in pair or BARE not in pair or not any(map(_has_image, pair)):
        return ""
    together = groups(found.plan.contrasts)[group_of(contrast)]
    apart = [c for c in together if UNPACKED in (runtimes.get(c.arm), runtimes.get(c.base))]
    if any(complete_pairs(found, c) for c in apart):
        return ""
    reason = "no arm of its blocks runs the image's files without a container (runtime 'unpacked')"
    if apart:
        reason = "runtime 'unpacked' gave no pair"
    if is_own(image := images.get(contrast.arm, "")):
        reason = f"the software is that of the user's own image {image}, and {reason}"
    return f"stack and container not separated: {reason}"


def _has_image(runtime: str) -> bool:
    """Return whether a runtime shows a worker an image's own files; a plug-in not here might."""
    known = registry.known("runtimes", runtime)
    return bool(known is None or known.isolated)


def _fastest(
    cases: Sequence[CaseResult], contrasts: Sequence[ContrastResult]
) -> dict[str, FastestResult]:
    """Return ``stage cache`` -> the ranking of the cases, fastest first."""
    out: dict[str, FastestResult] = {}
    cases = [c for c in cases if c.runtime == BARE] or cases  # runtimes have their contrasts
    for stage in ("read", "load", "train"):
        for cache in ("cold", "warm"):
            rates = {c.case: rate.value for c in cases if (rate := c.rate(stage, cache))}
            if not rates:
                continue
            ranked = sorted(rates, key=rates.__getitem__, reverse=True)
            here = [c for c in contrasts if (c.stage, c.cache) == (stage, cache)]
            judged = _backed(ranked, here)
            out[f"{stage} {cache}"] = FastestResult(ranked[0], rates[ranked[0]], ranked, judged)
    return out


def _backed(ranked: Sequence[str], contrasts: Sequence[ContrastResult]) -> bool:
    """Return whether contrasts of the first case with every other one agree with its place."""
    fits: dict[str, list[bool]] = {}
    for c in contrasts:
        if ranked[0] in (c.arm, c.base):
            other, won = (c.base, stats.FASTER) if c.arm == ranked[0] else (c.arm, stats.SLOWER)
            fits.setdefault(other, []).append(c.outcome.verdict in (won, stats.EQUIVALENT))
    return len(ranked) > 1 and all(all(fits.get(label, [False])) for label in ranked[1:])
