"""What the user wrote that has no effect on a suite, and why: it is said, never ignored."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from iobench.core import registry, stages
from iobench.core.cases import Case, ContrastRule, Plan
from iobench.core.errors import shown
from iobench.core.own_images import is_own
from iobench.plan.contrasts import contrasts
from iobench.plan.ladder import ladder
from iobench.plan.rules import rules
from iobench.spec.contrast_rules import check_cache, matches
from iobench.spec.load import expand, extra_cases, pipeline
from iobench.spec.schema import ContrastSpec, Spec

#: Axes whose members have options.
AXES = ("loader", "format", "trainer", "runtime", "launcher")
#: (key, why it has no effect)
Finding = tuple[str, str]


def notes(spec: Spec, plan: Plan) -> list[str]:
    """Return a line for each key of a spec that has no effect on its plan.

    ``plan``: of the whole spec, as if all its runtimes could run.
    """
    found = [
        *_of_suite(spec, plan),
        *_of_ladder(spec, plan),
        *_of_defaults(spec, plan.cases),
        *_of_excludes(spec),
    ]
    for i, (wanted, rule) in enumerate(zip(spec.contrasts, rules(spec, plan.cases), strict=True)):
        found += [(f"contrasts[{i}].{key}", why) for key, why in _of_contrast(wanted, rule)]
    found += [*_of_members(spec, plan.cases), *_of_threads(spec)]
    return [f"{key} has no effect: {why}" for key, why in dict.fromkeys(found)]


def _of_suite(spec: Spec, plan: Plan) -> Iterator[Finding]:
    typed, trials = spec.model_fields_set, plan.trials
    if "stage_to" in typed and spec.stage_to:
        yield from _unless(
            any(registry.load("placements", c.placement).stage_to for c in plan.cases),
            "stage_to",
            "no case has placement 'staged'",
        )
    sized = "sd_bytes" in spec.dataset.model_fields_set and not spec.dataset.mean_bytes
    yield from _unless(not sized, "dataset.sd_bytes", "it goes with dataset.mean_bytes")
    if spec.mlperf:
        fed = any(trial.stage == stages.FEED for trial in trials)
        yield from _unless(fed, "mlperf", f"no case runs stage {stages.FEED!r}")
    if "compute_s" in typed:
        computing = any(not stages.of(trial.stage).reads for trial in trials)
        yield from _unless(computing, "compute_s", "no case runs stage 'compute'")
    if "max_repeated_pairs" in typed:
        yield from _unless(bool(spec.contrasts), "max_repeated_pairs", "nothing is compared")
    states = {t.cache for t in trials} | {cell.cache for r in plan.rules for cell in r.cells}
    if spec.first_touch:
        yield from _unless("cold" in states, "first_touch", "no trial is cold")
    if spec.servers_cache:
        yield from _unless("cold" in states, "servers_cache", "no trial is cold")
    if spec.allow_drop_caches:
        used = bool(states - {"warm", "-"}) or any(stages.of(t.stage).writes for t in trials)
        yield from _unless(used, "allow_drop_caches", "no trial is cold")


def _of_ladder(spec: Spec, plan: Plan) -> Iterator[Finding]:
    typed, trials = spec.ladder.model_fields_set, plan.trials
    if "caches" in typed:
        rungs = [(t.cache, stages.of(t.stage)) for t in trials]
        there = {cache for cache, stage in rungs if stage.rung is not None and not stage.always}
        for cache in spec.ladder.caches:
            state = check_cache("ladder.caches", cache)
            yield from _unless(state in there, "ladder.caches", f"no trial of it can be {state}")
    for key in sorted({"digest", "probe"} & typed):
        other = spec.ladder.model_copy(update={key: not getattr(spec.ladder, key)})
        flipped = ladder(spec.model_copy(update={"ladder": other}), plan.cases)
        changes = flipped != ladder(spec, plan.cases)
        yield from _unless(changes, f"ladder.{key}", "it makes no trial of any case")
    if spec.cases and not spec.matrix:
        for key in ("stages", "repeats"):
            own = all(key in extra.model_fields_set for extra in spec.cases)
            if key in typed and own:
                yield f"ladder.{key}", "every case has its own"
    elif "stages" in typed:
        made = {trial.stage for trial in trials}
        for name in spec.ladder.stages:
            key = f"{name!r} in ladder.stages"
            yield from _unless(name in made, key, "no case has a trial of it")


def _unless(used: bool, key: str, why: str) -> Iterator[Finding]:
    if not used:
        yield key, why


def _of_defaults(spec: Spec, cases: Sequence[Case]) -> Iterator[Finding]:
    """Yield the keys of ``[case]`` that no case takes its value from."""
    layers: list[Mapping[str, object]] = [*spec.matrix]
    layers += [dict.fromkeys(extra.model_fields_set) for extra in spec.cases]
    for key in sorted(spec.case.model_fields_set):
        if not key.endswith("_options"):
            if layers and all(key in layer for layer in layers):
                yield f"case.{key}", "every case names its own"
            continue
        for name, value in getattr(spec.case, key).items():
            if not any(getattr(c, key).get(name) == value for c in cases):
                yield f"case.{key}.{name}", f"no case takes {shown(value)} from [case]"


def _of_excludes(spec: Spec) -> Iterator[Finding]:
    everything = expand(spec.model_copy(update={"exclude": ()})) if spec.exclude else ()
    for i, wanted in enumerate(spec.exclude):
        if not any(matches(case, wanted) for case in everything):
            yield f"exclude[{i}]", "no case of the matrix has these values"


def _of_contrast(wanted: ContrastSpec, rule: ContrastRule) -> Iterator[Finding]:
    typed = wanted.model_fields_set
    if not contrasts([rule], {}):
        key = "after" if wanted.after else "over"
        yield key, "it leaves no two cases to compare in a cache state that they can have"
    elif wanted.slice_s and not any(cell.slice_s for cell in rule.cells):
        why = "its arms cannot take turns (they do warm or cold, on one rank and without limits)"
        probed = rule.probes and any(cell.probe_slice_s for cell in rule.cells)
        unused = ("loop_s",) if probed else ("slice_s", "loop_s")
        yield from ((key, why) for key in unused if key in typed)
    elif "loop_s" in typed and not wanted.slice_s:
        yield "loop_s", "slice_s = 0: the arms do not take turns"
    elif turns := [cell for cell in rule.cells if cell.slice_s]:
        short = "loop_s" in typed and {cell.cache for cell in turns} == {"cold"}
        yield from _unless(not short, "loop_s", "a cold loop is one epoch")
        least_s = min(cell.slice_s for cell in turns)
        why = f"turns take {least_s:g} s: the data are cold, or the arms load unlike"
        yield from _unless("slice_s" not in typed or least_s <= wanted.slice_s, "slice_s", why)
    there = {cell.cache for cell in rule.cells}
    for cache in wanted.caches if "caches" in typed and there else ():
        state = check_cache("caches", cache)
        yield from _unless(state in there, "caches", f"no two of its cases can be {state}")


def _of_members(spec: Spec, cases: Sequence[Case]) -> Iterator[Finding]:
    """Yield what the cases' own members, or what they are together, do not use."""
    extras = extra_cases(spec, cases)
    matrix = {key for table in spec.matrix for key in table}
    lines: dict[Finding, list[str]] = {}
    for case in cases:
        extra = extras.get(case.label)
        typed = {*spec.case.model_fields_set, *(extra.model_fields_set if extra else matrix)}
        for key, why in _of_case(case).items():
            axis, dot, option = key.partition(".")
            wrote = option in getattr(case, axis) if dot else key in typed
            if wrote:
                lines.setdefault((key, why), []).append(case.pipeline)
    for (key, why), pipelines in lines.items():
        yield f"{key} of {', '.join(dict.fromkeys(pipelines))}", why


def _of_threads(spec: Spec) -> Iterator[Finding]:
    """Yield the numbers of workers that loaders with a fixed number of threads were given."""
    usual: dict[str, list[Any]] = {
        "pipeline": [spec.case.pipeline or "jpeg"],
        "workers": [spec.case.workers],
    }
    layers: list[dict[str, list[Any]]] = [{**usual, **table} for table in spec.matrix]
    for extra in spec.cases:
        own = {key: [getattr(extra, key)] for key in usual if key in extra.model_fields_set}
        layers.append({**usual, **own})
    for layer in layers or [usual]:
        for name in layer["pipeline"]:
            loader = pipeline(name)[0]
            threads = registry.load("loaders", loader).threads
            if threads and any(value not in (None, threads) for value in layer["workers"]):
                yield f"workers of {name}", f"loader {loader} always has {threads}"


def _of_case(case: Case) -> Mapping[str, str]:
    """Return key -> why it has no effect on one case."""
    found: dict[str, str] = {}
    for axis in AXES:
        found |= registry.load(f"{axis}s", getattr(case, axis)).unused(case)
    if is_own(case.image) and not registry.form_of(case):
        found["image"] = f"runtime {case.runtime} runs no image"
    if case.world_size == 1:
        found["sharing"] = "one rank shares with nobody"
    if case.scope:
        usual = registry.scope_of(dataclasses.replace(case, scope=""))
        if not usual:
            found["scope"] = f"runtime {case.runtime} is no container"
        elif case.world_size == 1 and case.scope == usual:
            found["scope"] = "one rank has one container"
    loader = registry.load("loaders", case.loader)
    if "decoders" not in registry.loading(case):
        by_itself = f"loader {case.loader} decodes by itself, or not at all"
        found["decoder"] = "stored pixels are not decoded" if loader.decodes else by_itself
    external = case.loader_options.get("reader") == "external"
    if case.stored_form in loader.native and not external:
        layout = getattr(registry.format_of(case), "layout", {})
        why = f"loader {case.loader} has its own reader of {case.stored_form}"
        found |= {f"format_options.{k}": why for k in case.format_options if k not in layout}
    return found
