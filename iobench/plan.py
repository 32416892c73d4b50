"""Cases -> trials: which processes start, in which order.  Pure: draws from a seed, runs nothing.

Two phases.  The ladder gives every rung a few repeats (EXPLORATORY numbers).  Then come the paired
blocks of the contrasts; a contrast against ``fastest`` takes as its base the case that the ladder
found fastest, so the choice and the comparison never share data.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from iobench import registry
from iobench.errors import SpecError
from iobench.model import Case, Contrast, Trial
from iobench.spec import PIPELINE_FIELDS, ContrastSpec, Spec, check_cache, extra_cases, pipeline

#: Seconds a trial costs around its loop: interpreter, imports, cache control and proof.
OVERHEAD_S = 3.2
#: First guesses, samples/s a worker (one core, 110 KB JPEGs); the driver learns the real ones.
GUESS = {"read": 4000.0, "decode": 700.0, "load": 420.0}
CACHED_STAGES = ("read", "load", "train")


def ladder(spec: Spec, cases: Sequence[Case], total: int) -> list[Trial]:
    """Return the ladder's trials: every repeat holds each rung once, in an order of its own.

    ``total``: samples of the dataset.  A rung that a loader cannot run alone is left out here
    and named with its reason by :func:`missing_rungs`.
    """
    extras = extra_cases(spec, cases)
    rng = random.Random(spec.seed)
    rounds: dict[int, list[Trial]] = {}
    for case in cases:
        extra = extras.get(case.label)
        stages = (extra.stages if extra and extra.stages else None) or spec.ladder.stages
        repeats = (extra.repeats if extra and extra.repeats else None) or spec.ladder.repeats
        first = _computed_before(cases, case)
        for stage in stages:
            if stage in rungs_missing(case) or (stage == "compute" and first):
                continue
            for cache in _caches(spec, case, stage):
                for repeat in range(1, repeats + 1):
                    rounds.setdefault(repeat, []).append(
                        Trial(id="", case=case, stage=stage, cache=cache, block=repeat)
                    )
        if not extra:
            rounds.setdefault(0, []).extend(_side_trials(spec, case))
    trials: list[Trial] = []
    for repeat in sorted(rounds):
        block = rounds[repeat]
        if repeat:
            rng.shuffle(block)
        trials += block
    return number(trials, start=1)


def rungs_missing(case: Case) -> Mapping[str, str]:
    """Return stage -> why this case's loader cannot run it alone."""
    loader = registry.load("loaders", case.loader)
    reasons = dict(loader.no_stage)
    for stage in ("read", "decode", "load"):
        if stage not in loader.stages:
            reasons.setdefault(stage, f"loader {case.loader!r} cannot run it alone")
    if registry.load("formats", case.format).fileless:
        reasons["ceiling"] = "no files"
        if case.stored_form not in loader.native:
            for stage in ("decode", "load", "train"):
                reasons[stage] = f"format {case.format!r} has no bytes to decode"
    return reasons


def contrasts(
    spec: Spec, cases: Sequence[Case], fastest: Mapping[tuple[str, str], Sequence[str]]
) -> list[Contrast]:
    """Return every contrast of the spec.

    ``fastest``: (stage, cache) -> case labels, fastest first, as the ladder found them.  Raises
    SpecError for one that compares nothing, or whose base is no case.
    """
    out: list[Contrast] = []
    matrix = [c for c in cases if c.label not in extra_cases(spec, cases)] or list(cases)
    for i, wanted in enumerate(spec.contrasts):
        groups = _groups(matrix, wanted.over)
        if not groups:
            raise SpecError(
                f"contrasts[{i}]: no two cases differ in {wanted.over!r} alone, so there is "
                f"nothing to compare; give matrix.{wanted.over} two values"
            )
        for group in groups:
            fileless = all(registry.load("formats", c.format).fileless for c in group)
            caches = ["-"] if fileless else [check_cache("contrasts", c) for c in wanted.caches]
            for cache in caches:
                base = _base(
                    f"contrasts[{i}]", wanted, group, fastest.get((wanted.stage, cache), ())
                )
                out += [
                    Contrast(
                        id=f"c{len(out) + j + 1:02d}",
                        arm=case.label,
                        base=base.label,
                        stage=wanted.stage,
                        cache=cache,
                        margin=wanted.margin,
                        pairs=wanted.pairs,
                        primary=wanted.primary,
                    )
                    for j, case in enumerate(c for c in group if c.label != base.label)
                ]
    return out


def blocks(
    contrasts: Sequence[Contrast],
    cases: Sequence[Case],
    *,
    seed: int,
    start: int,
) -> list[Trial]:
    """Return the paired trials: both arms back to back, orders from ABBA/BAAB, blocks shuffled.

    ``start``: number of the first trial.
    """
    rng = random.Random(f"{seed}-blocks")
    by_label = {c.label: c for c in cases}
    drawn: list[list[Trial]] = []
    for contrast in contrasts:
        orders: list[tuple[str, str]] = []
        while len(orders) < contrast.pairs:
            ab = (contrast.arm, contrast.base)
            first = ab if rng.random() < 0.5 else ab[::-1]
            orders += [first, first[::-1]]
        drawn += [
            block_of(contrast, by_label, order, number_)
            for number_, order in enumerate(orders[: contrast.pairs], 1)
        ]
    rng.shuffle(drawn)
    return number([t for block in drawn for t in block], start=start)


def block_of(
    contrast: Contrast,
    by_label: Mapping[str, Case],
    order: Sequence[str],
    block: int,
    repeat_of: str = "",
) -> list[Trial]:
    """Return one block: a trial an arm, in ``order`` (case labels)."""
    return [
        Trial(
            id="",
            case=by_label[label],
            stage=contrast.stage,
            cache=contrast.cache,
            contrast=contrast.id,
            arm=label,
            block=block,
            position=position,
            repeat_of=repeat_of,
        )
        for position, label in enumerate(order)
    ]


def number(trials: Iterable[Trial], start: int) -> list[Trial]:
    """Give every trial its id: its place in the plan, and words for people."""
    out = []
    for i, trial in enumerate(trials, start):
        words = "-".join(
            [trial.contrast or "ladder", trial.stage, trial.cache, trial.case.pipeline]
        )
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-")
        out.append(dataclasses.replace(trial, id=f"{i:04d}-{slug}"))
    return out


def guess_s(trial: Trial, compute_s: float) -> float:
    """Return a first guess of a trial's wall time in seconds."""
    case = trial.case
    if trial.stage == "compute":
        return OVERHEAD_S + compute_s
    samples = case.samples or 1280
    if trial.stage in ("digest", "probe", "ceiling"):
        return OVERHEAD_S + 1.0
    rate = GUESS["load" if trial.stage == "train" else trial.stage] * max(case.workers, 1)
    loop = samples / rate
    if trial.stage == "train":
        step = registry.load("trainers", case.trainer).step_s(case.batch, case.trainer_options)
        loop = max(loop, samples / case.batch * step)
    return OVERHEAD_S + loop


def _computed_before(cases: Sequence[Case], case: Case) -> bool:
    """Tell whether an earlier case has the same trainer and batch: one compute rung serves both."""
    for other in cases:
        if other is case:
            return False
        if compute_key(other) == compute_key(case):
            return True
    return False


def compute_key(case: Case) -> tuple[Any, ...]:
    """Return what decides the ``compute`` rung: cases that agree in it share one."""
    options = tuple(sorted(case.trainer_options.items()))
    return (
        case.trainer, options, case.batch, case.transform, case.runtime, case.launcher,
        case.world_size, case.image, case.cpus, case.memory_bytes,
    )  # fmt: skip


def _side_trials(spec: Spec, case: Case) -> list[Trial]:
    loader = registry.load("loaders", case.loader)
    out: list[Trial] = []
    if registry.load("formats", case.format).fileless:
        return out
    if spec.ladder.digest:
        out.append(Trial(id="", case=case, stage="digest", cache="-"))
    if spec.ladder.probe and loader.probe is not None:
        out.append(Trial(id="", case=case, stage="probe", cache="warm"))
    return out


def _caches(spec: Spec, case: Case, stage: str) -> list[str]:
    if registry.load("formats", case.format).fileless:
        return ["-"]
    if stage == "ceiling":
        return ["cold"]
    if stage == "compute":
        return ["-"]
    caches = [check_cache("ladder.caches", c) for c in spec.ladder.caches]
    return caches if stage in CACHED_STAGES else [c for c in caches if c == "warm"]


def _groups(cases: Sequence[Case], over: str) -> list[list[Case]]:
    """Split the cases into those that differ in ``over`` alone."""
    ignored = (
        {*PIPELINE_FIELDS, "loader_options", "format_options"} if over == "pipeline" else {over}
    )
    names = [f.name for f in dataclasses.fields(Case) if f.name not in {*ignored, "label"}]
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(repr([getattr(case, n) for n in names]), []).append(case)
    return [g for g in groups.values() if len(g) > 1]


def _base(where: str, wanted: ContrastSpec, group: Sequence[Case], fastest: Sequence[str]) -> Case:
    by_label = {c.label: c for c in group}
    if wanted.base == "fastest":
        ranked = [by_label[label] for label in fastest if label in by_label]
        return ranked[0] if ranked else group[0]
    for case in group:
        if wanted.over == "pipeline":
            found = (case.loader, case.format, case.content) == pipeline(str(wanted.base))
        else:
            found = getattr(case, wanted.over) == wanted.base
        if found:
            return case
    allowed = ", ".join(["fastest", *by_label])
    raise SpecError(f"{where}: base {wanted.base!r} is no case of this spec; allowed: {allowed}")
