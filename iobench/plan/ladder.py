"""Cases -> trials: which processes start, in which order.  Pure: draws from a seed, runs nothing.

The ladder gives every rung a few repeats (EXPLORATORY numbers).
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from iobench.core import registry, stages
from iobench.core.cases import Case, Trial
from iobench.host import engines
from iobench.spec.contrast_rules import check_cache, matches
from iobench.spec.load import extra_cases
from iobench.spec.schema import ExtraCase, Spec


def ladder(spec: Spec, cases: Sequence[Case]) -> list[Trial]:
    """Return the ladder's trials: every repeat holds each rung once, in an order of its own.

    A rung that a loader cannot run alone is left out; :func:`rungs_missing` has the reason.
    """
    extras = extra_cases(spec, cases)
    rng = random.Random(spec.seed)
    rounds: dict[int, list[Trial]] = {}
    climbing = [c for c in cases if c.label in extras or matches(c, spec.ladder.only)]
    rungs = {c.label: _rungs(spec, extras.get(c.label), c) for c in climbing}
    shared = {
        stage: [c for c in climbing if stage in rungs[c.label]]
        for stage in stages.rungs()
        if not stages.of(stage).reads or stages.of(stage).of_mount
    }
    for case in cases:
        extra = extras.get(case.label)
        repeats = (extra and extra.repeats) or spec.ladder.repeats
        for stage in rungs.get(case.label, ()):
            key = shared_key(stage)
            equal = (c for c in shared.get(stage, ()) if key(c) == key(case))
            if next(equal, case) is not case:  # an earlier case's rung serves this one
                continue
            together = [stage]  # in the same round: they pair
            if case.world_size > 1 and stages.of(stage).beside:
                together.append(stages.of(stage).beside)
            for cache in _caches(spec, case, stage):
                for repeat in range(1, repeats + 1):
                    rounds.setdefault(repeat, []).extend(
                        Trial("", case, name, cache, block=repeat) for name in together
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
    wanted = (extra and extra.stages) or spec.ladder.stages
    missing = rungs_missing(case)
    return [stage for stage in wanted if stage not in missing]


def rungs_missing(case: Case) -> Mapping[str, str]:
    """Return stage -> why this case's loader cannot run it alone."""
    loader = registry.load("loaders", case.loader)
    stored = registry.load("formats", case.format)
    no_bytes = stored.fileless and case.stored_form not in loader.native
    trainer = registry.load("trainers", case.trainer)
    no_host = _no_host(case)
    reasons = {}
    for name in stages.rungs():
        stage = stages.of(name)
        if stage.on_host:
            one = "it reads on one node" if case.nodes > 1 and not stage.on_nodes else ""
            reasons[name] = no_host or one
            if stage.per_file and not (stored.per_file or reasons[name]):
                reasons[name] = f"format {case.format!r} stores several samples a file"
        elif stage.starts:
            reasons[name] = _no_start(case)
        elif stage.needs and not hasattr(trainer.make, stage.needs):
            reasons[name] = f"trainer {case.trainer!r} has no {stage.needs!r}"
        elif stage.onto_device and (why := _no_copy(case)):
            reasons[name] = why
        elif stage.reads and no_bytes and stage.asks != "read":
            reasons[name] = f"format {case.format!r} has no bytes to decode"
        elif stage.reads and stage.asks not in loader.stages:
            usual = f"loader {case.loader!r} cannot run it alone"
            reasons[name] = loader.no_stage.get(stage.asks, usual)
    return {name: why for name, why in reasons.items() if why}


def _no_start(case: Case) -> str:
    """Return why the cache state of what a case starts from cannot be set, "" where it can."""
    if registry.load("placements", case.placement).in_image:
        return "the data is inside the image that it would start from"
    if case.nodes > 1 and (form := registry.form_of(case)) in engines.FORMS:
        return f"each node's {form} keeps the image's files where it likes"
    return ""


def _no_copy(case: Case) -> str:
    """Return why no batch of a case is copied from the host to a GPU, "" where they are."""
    if not case.trains_on_gpu:
        return f"trainer {case.trainer!r} is not on a GPU here: nothing is copied"
    if case.loader_options.get("device") in ("mixed", "gpu"):
        return f"loader {case.loader!r} makes its batches on the GPU"
    return ""


def _no_host(case: Case) -> str:
    """Return why no stage can read a case's files on the host, "" where one can."""
    placement = registry.load("placements", case.placement)
    if registry.load("formats", case.format).fileless:
        return "no files"
    if placement.in_memory:
        return "the data is in memory"
    if placement.in_image:
        return "the data is inside an image, and it reads on the host"
    return ""


def number(trials: Iterable[Trial], start: int) -> list[Trial]:
    """Give every trial its id: its place in the plan, and words for people."""
    out = []
    for i, trial in enumerate(trials, start):
        words = (trial.contrast or "ladder", trial.stage, trial.cache, trial.case.pipeline)
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)).strip("-")
        out.append(dataclasses.replace(trial, id=f"{i:04d}-{slug}"))
    return out


def shared_key(stage: str) -> Callable[[Case], tuple[Any, ...]]:
    """Return what decides a rung that equal cases share: of the mount, or without its data."""
    if stages.of(stage).writes:
        return place_key
    return mount_key if stages.of(stage).of_mount else compute_key


def place_key(case: Case) -> tuple[Any, ...]:
    """Return the mount of a case's files, whatever they are."""
    return case.location, case.placement


def mount_key(case: Case) -> tuple[Any, ...]:
    """Return the files and their mount."""
    return case.folder, case.location, case.placement


def compute_key(case: Case) -> tuple[Any, ...]:
    """Return what decides the ``compute`` rung: cases that agree in it share one."""
    options = tuple(sorted(case.trainer_options.items()))
    key = (
        case.trainer, options, case.batch, case.transform, case.runtime, case.launcher,
        tuple(sorted(case.launcher_options.items())), case.world_size, case.nodes, case.scope,
        case.image,
        case.cpus, case.memory_bytes,
    )  # fmt: skip
    if not case.trains_on_gpu:
        return key
    # a batch that lies on the host, pinned or not, is copied in every step; one on the GPU is not
    return (*key, case.loader, tuple(sorted(case.loader_options.items())))


def digest_of(case: Case) -> list[Trial]:
    """Return the trial that digests what the case makes of the samples; none without files."""
    fileless = registry.load("formats", case.format).fileless
    return [] if fileless else [Trial("", case, "digest", "-")]


def _side_trials(spec: Spec, case: Case) -> list[Trial]:
    loader = registry.load("loaders", case.loader)
    if registry.load("formats", case.format).fileless or not matches(case, spec.ladder.only):
        return []
    out = digest_of(case) if spec.ladder.digest else []
    if spec.ladder.probe and loader.probe is not None:
        out.append(Trial("", case, stages.PROBE, "warm"))
    return out


def _caches(spec: Spec, case: Case, stage: str) -> list[str]:
    makes_sense, of_data = stages.of(stage).caches, not stages.of(stage).starts
    if of_data and registry.load("formats", case.format).fileless:
        return ["-"]
    if stages.of(stage).always and makes_sense:
        return list(makes_sense)
    caches = [check_cache("ladder.caches", c) for c in spec.ladder.caches]
    if of_data and registry.load("placements", case.placement).in_memory:
        return [c for c in caches if c == "warm"]
    return [c for c in caches if makes_sense is None or c in makes_sense]
