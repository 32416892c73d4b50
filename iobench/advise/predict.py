"""A suite -> what training would give if something were changed; what one mount could feed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from iobench.advise.explain import caches_of, of_script
from iobench.advise.findings import Scene
from iobench.advise.forecast import Model, model
from iobench.advise.validated import error_of
from iobench.advise.what_ifs import (
    GPU_DECODE,
    GPU_NOTE,
    PIPELINE,
    WHAT_IFS,
    WhatIf,
    decoded_on_gpu,
    moved,
)
from iobench.analysis.case_results import CaseResult, RateResult
from iobench.analysis.results import SuiteResult
from iobench.core.accelerators import WORKLOADS
from iobench.core.errors import SpecError
from iobench.equations.stats import Interval

#: Every what-if.
NAMES = (*WHAT_IFS, PIPELINE, GPU_DECODE)
#: ``device`` of a case whose JPEGs are decoded on the GPU.
ON_GPU = "mixed"


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Training after a change, samples/s, and how many times faster than before.

    ``before``, ``after``: what binds.  ``error``: how far the same model is from training as it was
    measured, before the change (0.05: 5 % too fast); None where training was not measured.
    ``validated``: what such what-ifs missed where they were checked, "" where none was.
    """

    case: str
    cache: str
    what: str
    now: Interval
    rate: Interval
    gain: Interval
    before: str
    after: str
    error: float | None
    note: str
    validated: str = ""


@dataclasses.dataclass(frozen=True)
class Feed:
    """How many accelerators of a kind ``what`` feeds at the AU that MLPerf Storage asks for.

    ``mount``: bytes/s of fio against a workload's own samples.  Else samples/s of this suite's.
    """

    case: str
    cache: str
    what: str
    workload: str
    accelerator: str
    least_au: float
    supply: Interval
    demand: float
    unit: str
    count: Interval


def predict(suite: SuiteResult, wanted: Sequence[str] = (), *, label: str = "") -> list[Prediction]:
    """Return predictions of ``NAME=VALUE`` (none: the usual ones), of one case or of all.

    Raises SpecError for a name, a value or a label that is not known.
    """
    asked = [_parsed(text) for text in wanted]
    if label and label not in {c.case for c in suite.pipelines}:
        known = ", ".join(c.case for c in suite.pipelines)
        raise SpecError(f"case {label!r} is not in these results; allowed: {known}")
    found: list[Prediction] = []
    for case in suite.pipelines:
        if label in ("", case.case) and case.trainer != "null":
            for cache in caches_of(suite):
                found += _of_case(Scene(case, cache, suite), asked)
    return found


def _parsed(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if name not in NAMES or not value:
        known = ", ".join(NAMES)
        raise SpecError(f"{text!r} is no what-if; allowed: NAME=VALUE, NAME one of {known}")
    return name, value


def _of_case(scene: Scene, asked: Sequence[tuple[str, str]]) -> Iterator[Prediction]:
    base = scene.model
    if not base:
        return
    for what_if in WHAT_IFS.values():
        values = [v for name, v in asked if name == what_if.name]
        for value in values if asked else _usual(what_if, base, scene.suite):
            if after := what_if.make(base, value):
                yield _prediction(base, after, f"{what_if.name}={value}", what_if.note)
    pipelines = [v for name, v in asked if name == PIPELINE]
    for other in scene.others:
        if other.device == scene.case.device and (not asked or other.pipeline in pipelines):
            measured = model(other, scene.cache, scene.suite)
            if measured:
                yield _prediction(base, moved(base, measured), f"{PIPELINE}={other.pipeline}", "")
    for other in _gpu_cases(scene.case, scene.suite):
        measured = model(other, scene.cache, scene.suite)
        if measured and (not asked or GPU_DECODE in dict(asked)):
            after = decoded_on_gpu(base, measured)
            yield _prediction(base, after, f"{GPU_DECODE}={other.case}", GPU_NOTE)


def _usual(what_if: WhatIf, base: Model, suite: SuiteResult) -> Sequence[str]:
    """Return the values that are forecast where none is asked for; of a script none of a table."""
    return () if what_if.tabled and of_script(suite) else what_if.usual(base)


def _gpu_cases(case: CaseResult, suite: SuiteResult) -> Iterator[CaseResult]:
    """Yield the cases that decode on the GPU what this one decodes on its cores."""
    keys = ("runtime", "format", "order", "transform", "batch", "world_size", "placement")
    for other in suite.pipelines:
        alike = all(getattr(other, key) == getattr(case, key) for key in keys)
        if alike and other.device == ON_GPU and case.device != ON_GPU:
            yield other


def not_known(suite: SuiteResult, wanted: Sequence[str] = ()) -> list[str]:
    """Return the what-ifs that this suite cannot tell, each with the run that would."""
    names = {text.partition("=")[0] for text in wanted}
    asked = not names or GPU_DECODE in names
    cores = [c for c in suite.pipelines if c.device != ON_GPU and _decodes(c)]
    if not asked or not cores or of_script(suite) or any(any(_gpu_cases(c, suite)) for c in cores):
        return []
    return [
        f"{GPU_DECODE}: not known without a GPU run: add a case of loader dali with "
        f'loader_options device = "{ON_GPU}" to the spec, on a node with a GPU'
    ]


def _decodes(case: CaseResult) -> bool:
    decoded = case.pipeline.endswith(("-raw", "-float"))  # stored so
    return "null" not in (case.trainer, case.loader, case.format) and not decoded


def _prediction(base: Model, after: Model, what: str, note: str) -> Prediction:
    if base.error is None:
        note = "; ".join(filter(None, (note, "training itself was not measured")))
    return Prediction(
        case=base.case.case,
        cache=base.cache,
        what=what,
        now=base.now,
        rate=base.then(after),
        gain=base.gain(after),
        before=base.value.binding,
        after=after.value.binding,
        error=base.error,
        note=note,
        validated=error_of(what.partition("=")[0]),
    )


def _scaled(interval: Interval, factor: float) -> Interval:
    low, high = interval.low * factor, interval.high * factor
    return dataclasses.replace(interval, value=interval.value * factor, low=low, high=high)


def feeds(suite: SuiteResult, accelerator: str = "") -> list[Feed]:
    """Return what every mount and every node of a suite could feed, one row a kind of both."""
    rows: dict[tuple[str, ...], Feed] = {}
    for case in suite.pipelines:
        for workload, known in WORKLOADS.items():
            for name in known.accelerators:
                if accelerator in ("", name):
                    for row in (*_by_mount(case, workload, name), *_by_node(case, workload, name)):
                        rows.setdefault((row.what, row.cache, workload, name), row)
    return list(rows.values())


def _by_mount(case: CaseResult, workload: str, name: str) -> Iterator[Feed]:
    """Yield what the mount's bytes/s, by fio, feed of a workload's own samples."""
    ceiling = case.stages.get("ceiling")
    rung = ceiling.caches.get("cold") if ceiling else None
    if isinstance(rung, RateResult) and rung.bytes_per_s:
        known = WORKLOADS[workload]
        supply = _scaled(rung.samples_per_s, rung.bytes_per_s / rung.samples_per_s.value)
        demand = known.accelerators[name].samples_per_s * known.sample_bytes
        yield _feed(case, "cold", "mount (fio)", workload, name, supply, demand, "bytes/s")


def _by_node(case: CaseResult, workload: str, name: str) -> Iterator[Feed]:
    """Yield what this pipeline's reading and loading feed of ResNet-50 on its own samples."""
    if workload != "resnet50":
        return
    demand = WORKLOADS[workload].accelerators[name].samples_per_s
    for stage, cache in (("read", "cold"), ("load", "cold"), ("load", "warm")):
        if supply := case.rate(stage, cache):
            what = f"{case.case} {stage}"
            yield _feed(case, cache, what, workload, name, supply, demand, "samples/s")


def _feed(
    case: CaseResult, cache: str, what: str, workload: str, name: str, supply: Interval,
    demand: float, unit: str,
) -> Feed:  # fmt: skip
    least = WORKLOADS[workload].least_au
    count = _scaled(supply, 1 / (demand * least))
    limits = (count.low, count.high) if count.limited else (-math.inf, math.inf)
    count = dataclasses.replace(count, low=limits[0], high=limits[1])
    return Feed(case.case, cache, what, workload, name, least, supply, demand, unit, count)
