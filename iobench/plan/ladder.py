"""Cases -> trials: which processes start, in which order.  Pure: draws from a seed, runs nothing.

The ladder gives every rung a few repeats (EXPLORATORY numbers).  Then come the paired blocks of the
contrasts (:mod:`iobench.pairing`); a contrast against ``fastest`` takes as its base the case that
the ladder found fastest, so the choice and the comparison never share data.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from iobench import registry
from iobench.contrast_spec import check_cache, matches
from iobench.model import Case, Trial
from iobench.spec import ExtraCase, Spec, extra_cases

#: Seconds a trial costs around its loop: interpreter, imports, cache control and proof.
OVERHEAD_S = 3.2
#: First guesses, samples/s a worker (one core, 110 KB JPEGs); the driver learns the real ones.
GUESS = {"read": 4000.0, "decode": 700.0, "load": 420.0}
CACHED_STAGES = ("read", "load", "train")
#: The placement that is never cold.
IN_MEMORY = "tmpfs"
#: Placements that only a container sees as files.
IN_IMAGE = ("image", "overlay")


def ladder(spec: Spec, cases: Sequence[Case], total: int) -> list[Trial]:
    """Return the ladder's trials: every repeat holds each rung once, in an order of its own.

    ``total``: samples of the dataset.  A rung that a loader cannot run alone is left out here
    and named with its reason by :func:`missing_rungs`.
    """
    extras = extra_cases(spec, cases)
    rng = random.Random(spec.seed)
    rounds: dict[int, list[Trial]] = {}
    climbing = [c for c in cases if c.label in extras or matches(c, spec.ladder.only)]
    rungs = {c.label: _rungs(spec, extras.get(c.label), c) for c in climbing}
    computing = [c for c in climbing if "compute" in rungs[c.label]]
    for case in cases:
        extra = extras.get(case.label)
        repeats = (extra.repeats if extra and extra.repeats else None) or spec.ladder.repeats
        first = _computed_before(computing, case)
        for stage in rungs.get(case.label, ()):
            if stage == "compute" and first:
                continue
            for cache in _caches(spec, case, stage):
                for repeat in range(1, repeats + 1):
                    rounds.setdefault(repeat, []).append(
                        Trial(id="", case=case, stage=stage, cache=cache, block=repeat)
                    )
                    if stage == "compute" and case.world_size > 1:  # in the same round: they pair
                        rounds[repeat].append(
                            Trial(id="", case=case, stage="alone", cache="-", block=repeat)
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


def _rungs(spec: Spec, extra: ExtraCase | None, case: Case) -> list[str]:
    """Return the rungs wanted of a case that climbs, less those that its loader has not."""
    stages = (extra.stages if extra and extra.stages else None) or spec.ladder.stages
    missing = rungs_missing(case)
    return [stage for stage in stages if stage not in missing]


def rungs_missing(case: Case) -> Mapping[str, str]:
    """Return stage -> why this case's loader cannot run it alone."""
    loader = registry.load("loaders", case.loader)
    reasons = dict(loader.no_stage)
    for stage in ("read", "decode", "load"):
        if stage not in loader.stages:
            reasons.setdefault(stage, f"loader {case.loader!r} cannot run it alone")
    if case.placement == IN_MEMORY:
        reasons["ceiling"] = "the data is in memory"
    elif case.placement in IN_IMAGE:
        reasons["ceiling"] = "the data is inside an image, and fio reads on the host"
    if registry.load("formats", case.format).fileless:
        reasons["ceiling"] = "no files"
        if case.stored_form not in loader.native:
            for stage in ("decode", "load", "train"):
                reasons[stage] = f"format {case.format!r} has no bytes to decode"
    return reasons


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
    if trial.stage in ("compute", "alone"):
        return OVERHEAD_S + compute_s
    samples = case.samples or 1280
    if trial.stage in ("digest", "probe", "calls", "ceiling"):
        return OVERHEAD_S + 1.0
    rate = GUESS["load" if trial.stage == "train" else trial.stage] * max(case.workers, 1)
    loop = samples / rate
    if trial.stage == "train":
        step = registry.load("trainers", case.trainer).step_s(case.batch, case.trainer_options)
        loop = max(loop, samples / case.batch / case.world_size * step)
    return OVERHEAD_S + loop


def _computed_before(cases: Sequence[Case], case: Case) -> bool:
    """Tell whether an earlier one of ``cases``, which run compute, serves this case by its rung."""
    for other in cases:
        if other is case:
            return False
        if compute_key(other) == compute_key(case):
            return True
    return False


def compute_key(case: Case) -> tuple[Any, ...]:
    """Return what decides the ``compute`` rung: cases that agree in it share one."""
    options = tuple(sorted(case.trainer_options.items()))
    key = (
        case.trainer, options, case.batch, case.transform, case.runtime, case.launcher,
        tuple(sorted(case.launcher_options.items())), case.world_size, case.image, case.cpus,
        case.memory_bytes,
    )  # fmt: skip
    if case.trainer_options.get("device") != "cuda":
        return key
    # a batch that lies on the host, pinned or not, is copied in every step; one on the GPU is not
    return (*key, case.loader, tuple(sorted(case.loader_options.items())))


def _side_trials(spec: Spec, case: Case) -> list[Trial]:
    loader = registry.load("loaders", case.loader)
    out: list[Trial] = []
    if registry.load("formats", case.format).fileless:
        return out
    if spec.ladder.digest:
        out.append(Trial(id="", case=case, stage="digest", cache="-"))
    climbs = matches(case, spec.ladder.only)
    if climbs and spec.ladder.probe and loader.probe is not None:
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
    if case.placement == IN_MEMORY:
        return [c for c in caches if c == "warm"]
    return caches if stage in CACHED_STAGES else [c for c in caches if c == "warm"]
