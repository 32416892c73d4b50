"""Records -> the figures of single trials: which attempts count, and what each one measured."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from iobench.analysis import hosts, once
from iobench.analysis.case_results import Validity
from iobench.analysis.ranks import in_step, running, step_times
from iobench.analysis.windows import Times, between, epoch, window
from iobench.core import stages
from iobench.core.cases import STEADY, Case, Plan, Trial
from iobench.core.errors import SpecError
from iobench.core.records import EXPLORATORY, FAILED, INVALID, VALID, RankResult, Record, Startup
from iobench.equations import delivery, stats
from iobench.equations.stalls import Window, edge_shift_s
from iobench.plan.ladder import rungs_missing, shared_key

#: Waits of single steps that are kept of one record.
MOST_WAITS = 100_000
#: Cache states in which no storage is asked: ``-`` is a pipeline without files.
WARM_STATES = ("warm", "-")


def last_attempts(records: Iterable[Record]) -> dict[str, Record]:
    """Return trial id -> its last attempt, in the order in which these stand in ``records``."""
    last: dict[str, Record] = {}
    for record in records:
        seen = last.get(record.trial.id)
        if seen is None or record.attempt >= seen.attempt:
            last.pop(record.trial.id, None)
            last[record.trial.id] = record
    return last


def usable(records: Iterable[Record]) -> list[Record]:
    """Return the records that may enter a figure: VALID and EXPLORATORY ones."""
    return [r for r in records if enters(r)]


def trial_window(record: Record, *, whole: bool | None = None, workers: int = 0) -> Window | None:
    """Return the trial's window: the slowest rank's times, the samples of all ranks.

    Wait and compute of ranks that go :func:`~iobench.analysis.ranks.in_step` are the job's.
    ``whole``: the whole epoch or the steady window after the warm-up; None: by the cache state.
    ``workers``: of a whole epoch, how it ends (:func:`~iobench.analysis.windows.epoch`).
    """
    whole = record.trial.cache not in (*WARM_STATES, STEADY) if whole is None else whole
    return _window(record, whole, workers)


@once.a_record
def _window(record: Record, whole: bool, workers: int) -> Window | None:
    ranks = running(record.ranks, record.slices)
    begun = ranks if in_step(ranks) else ()
    first_s = max((r.steps.ready_s[0] for r in begun if r.steps.done_s), default=0.0)
    try:
        found = [epoch(r.steps, first_s, workers) if whole else window(r.steps) for r in ranks]
    except ValueError:  # no step for it
        return None
    samples = sum(w.samples for w in found)
    if not samples:
        return None
    rank, slowest = max(zip(ranks, found, strict=True), key=lambda pair: pair[1].wall_s)
    if slowest.wall_s <= 0:
        return None
    job = dataclasses.replace(
        slowest,
        block=record.trial.block,
        samples=samples,
        edge_s=_edge_s(record, rank, slowest, whole=whole),
        handover_s=_handover_s(rank, 0 if whole else rank.steps.warmup),
    )
    if not in_step(ranks):
        return job
    waits, computes = step_times(ranks)
    begin = 0 if whole else rank.steps.warmup
    compute_s = math.fsum(computes[begin:])
    wait_s = slowest.wall_s - compute_s if whole else math.fsum(waits[begin:])
    return dataclasses.replace(job, wait_s=wait_s, compute_s=compute_s)


def _edge_s(record: Record, rank: RankResult, found: Window, *, whole: bool) -> float:
    if whole:  # when the last burst came in while its first batch was trained on: half of it
        return max(0.0, rank.steps.ready_s[-1] - found.wall_s) / 2
    workers = record.trial.case.workers
    return edge_shift_s(rank.steps.done_s, warmup=rank.steps.warmup, workers=workers)


def _handover_s(rank: RankResult, begin: int) -> float:
    readings = rank.steps.request_s, rank.steps.ready_s, rank.steps.made_s
    handed = delivery.handed_s(*(times[begin:] for times in readings))
    return math.fsum(handed) / len(handed) if handed else 0.0


def startup_s(record: Record) -> float | None:
    """Return the start-up: process until ready, opening, the first batch; the slowest rank's."""
    parts = startup_parts(record)
    return _opened_s(parts) + parts.first_batch_s if parts else None


def startup_parts(record: Record) -> Startup | None:
    """Return the start-up in parts: of the rank that was ready last, and the last first batch.

    Ranks begin together, so the others waited for both.
    """
    ranks = running(record.ranks, record.slices)
    if not ranks:
        return None
    last = max((rank.startup for rank in ranks), key=_opened_s)
    first_batch_s = max(rank.startup.first_batch_s for rank in ranks)
    return dataclasses.replace(last, first_batch_s=first_batch_s)


def _opened_s(startup: Startup) -> float:
    return max(startup.process_s, startup.imports_s) + startup.open_s + startup.walk_s


def ceiling_samples_per_s(records: Iterable[Record]) -> list[float]:
    """Return fio's rates over the samples' own byte ranges, samples/s, where measured."""
    return [float(rate) for r in records if (rate := r.ceiling.get("samples_per_s"))]


@dataclasses.dataclass(frozen=True)
class Waits:
    """Waits of steps for their batches, ascending, in seconds.

    ``seconds``: of all ``count`` steps; where these are more than ``MOST_WAITS`` a record, each
    rank gives evenly spaced ones of its sorted waits, the longest among them.
    """

    count: int
    mean: float
    seconds: Times


def step_waits(records: Sequence[Record]) -> Waits:
    """Return the waits of the steps after the warm-up, all trials and ranks (or the job's)."""
    found = [_waits(record) for record in records]
    count = sum(one.count for one in found)
    mean = math.fsum(one.count * one.mean for one in found) / count if count else 0.0
    every = np.sort(np.concatenate([np.zeros(0), *(one.seconds for one in found)]))
    return Waits(count, mean, every)


@once.a_record
def _waits(record: Record) -> Waits:
    ranks = running(record.ranks, record.slices)
    if in_step(ranks):
        columns: Iterable[Times] = [np.asarray(step_times(ranks)[0][ranks[0].steps.warmup :])]
    else:
        columns = (
            between(rank.steps.request_s, rank.steps.ready_s)[rank.steps.warmup :]
            for rank in ranks
            if (rank.notes.get("trainer") or {}).get("wait_known") is not False
        )
    count, total, kept = 0, 0.0, [np.zeros(0)]
    for column in columns:
        count, total = count + len(column), total + float(np.sum(column))
        kept.append(_thinned(np.sort(column), MOST_WAITS // len(ranks)))
    return Waits(count, total / count if count else 0.0, np.concatenate(kept))


def _thinned(ranked: Times, most: int) -> Times:
    """Return at most so many of sorted values (100 at least): each the last of its equal share."""
    most = max(100, most)
    if len(ranked) <= most:
        return ranked
    found: Times = ranked[np.ceil(np.arange(1, most + 1) * len(ranked) / most).astype(int) - 1]
    return found


def ceiling_key(case: Case) -> tuple[Any, ...]:
    """Return what decides the ``ceiling`` rung: bytes, order and hints (fio reads on the host)."""
    readahead = case.format_options.get("readahead", True)
    place = case.folder, case.location, case.placement
    readers = max(case.workers, 1) * case.world_size
    return *place, case.order, readers, case.nodes, case.samples, readahead


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The usable records of one suite, by what they measured."""

    plan: Plan
    last: Mapping[str, Record]

    @cached_property
    def home(self) -> str:
        """The host whose records give all figures but those of pairs."""
        return hosts.home(usable(self.last.values()))

    def at_home(self, record: Record) -> bool:
        """Return whether a record may enter such a figure; what is not timed is of no host."""
        return hosts.is_of(record, self.home) or not hosts.timed(record.trial)

    def planned(self, case: Case) -> list[Trial]:
        """Return the case's trials in the plan."""
        return [t for t in self.plan.trials if t.case.label == case.label]

    def rungs(self, case: Case) -> set[tuple[str, str]]:
        """Return (stage, cache) of the case's trials in the plan."""
        return {(t.stage, t.cache) for t in self.planned(case)}

    def of(self, case: Case, stage: str, *caches: str) -> list[Record]:
        """Return the case's usable records of a rung, those of :attr:`home`.

        Any cache state when none is named.
        """
        return [
            r
            for r in usable(self.last.values())
            if r.trial.case.label == case.label
            and r.trial.stage == stage
            and (not caches or r.trial.cache in caches)
            and self.at_home(r)
        ]

    def windows(self, case: Case, stage: str, *caches: str) -> list[Window]:
        """Return the windows of :meth:`of`, ladder and contrast trials alike."""
        return _windows(self.of(case, stage, *caches))

    def train(self, case: Case, *caches: str, whole: bool | None = None) -> list[Window]:
        """Return the ``train`` rung's windows: the ladder's repeats, whose blocks pair.

        The contrasts' where the ladder has none.  ``whole``: see :func:`trial_window`.
        """
        records = self.of(case, "train", *caches)
        ladder = _windows([r for r in records if not r.trial.contrast], whole=whole)
        return ladder or _windows(records, whole=whole)

    def taken_s(self, case: Case, *caches: str) -> float:
        """Return the seconds a step of ``train`` that taking a batch took which was there.

        Of the median trial; 0: not known.
        """
        return median([w.handover_s for w in self.train(case, *caches)] or [0.0])

    def compute(self, case: Case) -> tuple[list[Window], str]:
        """Return the compute rung and the label of the case that ran it ("" when its own)."""
        records = self.shared(case, "compute")
        label = records[0].trial.case.label if records else case.label
        return _windows(records), "" if label == case.label else label

    def alone(self, case: Case) -> list[Window]:
        """Return the compute rung on one rank, of a case that has several."""
        return _windows(self.shared(case, "alone"))

    def shared(self, case: Case, stage: str) -> list[Record]:
        """Return the records of a shared rung or ceiling, of an equal case where it has none."""
        key = ceiling_key if stage == "ceiling" else shared_key(stage)
        equal = [case, *(c for c in self.plan.cases if key(c) == key(case))]
        return next((found for c in equal if (found := self.of(c, stage))), [])


def _windows(records: Iterable[Record], *, whole: bool | None = None) -> list[Window]:
    found = (trial_window(r, whole=whole) for r in records)
    return [w for w in found if w is not None]


def evidence(plan: Plan, records: Iterable[Record]) -> Evidence:
    """Return the suite's evidence: the last attempt of every trial."""
    return Evidence(plan, last_attempts(records))


def enters(record: Record) -> bool:
    """Return whether a record may enter a figure."""
    return record.status in (VALID, EXPLORATORY)


def standing(repeats: int, records: Iterable[Record] = ()) -> str:
    """Return EXPLORATORY where a record is, or where the repeats are fewer than a verdict needs."""
    few = repeats < stats.WANTED_PAIRS
    return EXPLORATORY if few or any(r.status == EXPLORATORY for r in records) else VALID


def validity(found: Evidence, ids: Sequence[str], attempts: int | None = None) -> Validity:
    """Return how many of these trials ran and how they ended, with the reasons."""
    records = [found.last[i] for i in ids if i in found.last]
    counts = Counter(r.status for r in records)
    reasons = Counter(reason for r in records if r.status != VALID for reason in r.reasons)
    statuses = {s: counts[s] for s in (VALID, EXPLORATORY, INVALID, FAILED)}
    return Validity(len(ids), len(records), statuses, dict(reasons.most_common()), attempts)


def why_missing(found: Evidence, case: Case, stage: str, cache: str) -> str:
    """Return the reason why a rung has no figure."""
    states = WARM_STATES if cache in WARM_STATES else (cache,)
    planned = [t for t in found.plan.trials if t.stage == stage and t.cache in states]
    if not stages.of(stage).reads or stages.of(stage).of_mount:  # an equal case's serves too
        key = shared_key(stage)
        planned = [t for t in planned if key(t.case) == key(case)]
    else:
        planned = [t for t in planned if t.case.label == case.label]
    where = "compute on one rank" if stage == "alone" else f"{stage} {cache}".removesuffix(" -")
    if not planned:
        return why_not_planned(case, stage) or f"{where} is not in the spec"
    bad = [found.last[t.id] for t in planned if t.id in found.last]
    if not bad:
        return f"{where} has not run yet: `iobench run --resume`"
    if away := sorted({hosts.host_of(r) for r in bad if enters(r) and not found.at_home(r)}):
        return (
            f"{where} has run on {', '.join(away)} alone, and the figures are {found.home}'s: "
            f"`iobench run --resume` on {found.home}"
        )
    if any(enters(r) for r in bad):
        return f"{where} ran, and left no step to measure after its warm-up: take more samples"
    reason = next((r.reasons[0] for r in bad if r.reasons), "no reason given")
    return f"{where} has no valid trial: {reason}"


def why_not_planned(case: Case, stage: str) -> str:
    """Return why this case's loader cannot run a rung alone, or ""."""
    try:
        return rungs_missing(case).get(stage, "")
    except SpecError as error:  # results of a plug-in that is not here
        return str(error)
