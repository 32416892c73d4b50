"""What could be changed in a job, one row each: how its parts' rates would change with it.

docs/advice.md, "predict".  A what-if more is a row more.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from iobench.advise.forecast import Model
from iobench.core.accelerators import WORKLOADS
from iobench.core.errors import SpecError
from iobench.data.convert import SIDES
from iobench.equations import pipeline
from iobench.equations.pipeline import Parts
from iobench.equations.stats import Interval

ACCELERATORS = WORKLOADS["resnet50"].accelerators
#: Bytes a sample of a cache of decoded pictures, as the raw content holds them.
DECODED_BYTES = 3 * SIDES["raw"] ** 2


@dataclasses.dataclass(frozen=True)
class WhatIf:
    """One change.  ``make(model, value)`` returns the model after it, None where not known.

    ``usual``: the values that are forecast where none is asked for; a number of workers, cores,
    nodes or jobs is then so many times today's.  ``tabled``: it is of a net in a table, which a
    script of the user's own need not train.
    """

    name: str
    about: str
    make: Callable[[Model, str], Model | None]
    usual: Callable[[Model], Sequence[str]]
    note: str = ""
    tabled: bool = False

    def gain(self, base: Model | None, value: object = "1") -> Interval | None:
        """Return how many times faster training would be, None where not known."""
        after = self.make(base, str(value)) if base else None
        return base.gain(after) if base and after else None


def number(name: str, value: str, *, least: float = 1) -> float:
    """Return a what-if's value as a number.  Raises SpecError."""
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) and found >= least):
        raise SpecError(f"{name}={value} is not possible; allowed: a number from {least:g} on")
    return found


def _workers(base: Model, value: str) -> Model | None:
    wanted = number("workers", value)
    if base.case.fixed_threads:
        return None
    factor = wanted / max(base.case.workers, 1)

    def change(parts: Parts) -> Parts:
        known = math.isfinite(parts.storage)  # else nobody knows what more requests would give
        read = parts.read * (factor if known else min(factor, 1.0))
        load = pipeline.scaled(parts, factor)
        return dataclasses.replace(parts, load=load, read=read, ahead=True)

    return base.changed(change)


def _cores(base: Model, value: str) -> Model | None:
    wanted = number("cores", value)
    if not base.case.cores or base.case.fixed_threads:
        return None
    factor = wanted / base.case.cores

    def change(parts: Parts) -> Parts:
        more = dataclasses.replace(parts, cores=wanted)
        return dataclasses.replace(more, load=pipeline.scaled(more, factor))

    return base.changed(change)


def _cached(base: Model, value: str) -> Model | None:
    fraction = number("cached", value, least=0)
    if base.cache != "cold" or not math.isfinite(base.value.fetch) or fraction > 1:
        return None
    warm = base.case.rate("read", "warm")

    def change(parts: Parts) -> Parts:
        if fraction == 1 or not warm:
            return dataclasses.replace(parts, read=math.inf, storage=math.inf, turns=0.0)
        read = pipeline.mixed(warm.value, parts.fetch, fraction)
        return dataclasses.replace(parts, read=read, storage=math.inf)

    return base.changed(change) if fraction == 1 or warm else None


def _nodes(base: Model, value: str) -> Model | None:
    """At worst all nodes share what this one got of the mount, at best each gets as much."""
    nodes = number("nodes", value)
    if not math.isfinite(base.value.fetch):
        return None

    def shared(parts: Parts) -> Parts:
        whole = parts.storage if math.isfinite(parts.storage) else parts.read
        return dataclasses.replace(parts, storage=whole / nodes)

    return dataclasses.replace(base, value=shared(base.value), low=shared(base.low))


def _jobs(base: Model, value: str) -> Model | None:
    jobs = number("jobs", value)

    def change(parts: Parts) -> Parts:
        cores, workers = parts.cores / jobs, max(base.case.workers, 1)
        most = cores / parts.cpu_s if parts.cpu_s else parts.load * min(1.0, cores / workers)
        whole = parts.storage if math.isfinite(parts.storage) else parts.read
        return dataclasses.replace(
            parts, cores=cores, load=min(parts.load, most), storage=whole / jobs
        )

    return base.changed(change)


def _accelerator(base: Model, value: str) -> Model | None:
    if value not in ACCELERATORS:
        known = ", ".join(sorted(ACCELERATORS))
        raise SpecError(f"accelerator {value!r} is not known; allowed: {known}")
    rate = ACCELERATORS[value].samples_per_s * base.case.world_size
    return base.changed(lambda p: dataclasses.replace(p, compute=rate, step_cpu_s=0.0))


def _decoded(base: Model, value: str) -> Model | None:
    """Pixels are read in place of JPEG bytes; the probe's share of decoding is not paid."""
    probe, size = base.case.probe, base.case.bytes.needed_per_sample
    decode = probe.shares.get("decode", 0.0) if probe else 0.0
    if not 0 < decode < 1 or (math.isfinite(base.value.fetch) and not size):
        return None
    grown = DECODED_BYTES / size if size else 1.0

    def change(parts: Parts) -> Parts:
        return dataclasses.replace(
            parts,
            load=parts.load / (1 - decode),
            cpu_s=parts.cpu_s * (1 - decode),
            read=parts.read / grown,
            storage=parts.storage / grown,
        )

    return base.changed(change)


def moved(base: Model, other: Model) -> Model:
    """Return a job whose loader and format are another case's, its compute its own."""

    def taken(mine: Parts, its: Parts) -> Parts:
        return dataclasses.replace(its, compute=mine.compute, step_cpu_s=mine.step_cpu_s)

    return dataclasses.replace(
        base,
        value=taken(base.value, other.value),
        low=taken(base.low, other.low),
        high=taken(base.high, other.high),
        repeats=min(base.repeats, other.repeats),
    )


def decoded_on_gpu(base: Model, other: Model) -> Model:
    """Return a job whose JPEGs another case's loader decodes on the GPU that computes its steps.

    At worst both take turns on it.
    """
    found = moved(base, other)
    turns = 1 / (1 / found.low.compute + 1 / found.low.load)
    return dataclasses.replace(found, low=dataclasses.replace(found.low, compute=turns))


def other_pipeline(base: Model | None, other: Model | None) -> Interval | None:
    """Return how many times faster training would be with another case's pipeline."""
    return base.gain(moved(base, other)) if base and other else None


def _twice(count: Callable[[Model], float | None]) -> Callable[[Model], Sequence[str]]:
    return lambda base: [f"{2 * found:g}" for found in (count(base),) if found]


WHAT_IFS = {
    w.name: w
    for w in (
        WhatIf("workers", "so many workers a rank", _workers, _twice(lambda m: m.case.workers or 1),
               "as far as the cores' time goes"),
        WhatIf("cores", "so many cores, and workers in proportion", _cores,
               _twice(lambda m: m.case.cores)),
        WhatIf("cached", "so much of the data in the page cache, 0 to 1", _cached,
               lambda m: ["1"] if m.cache == "cold" else []),
        WhatIf("decoded", "a cache of decoded pictures", _decoded, lambda m: ["1"],
               f"pictures of {SIDES['raw']} x {SIDES['raw']}"),
        WhatIf("nodes", "so many nodes on this filesystem; the rate is one node's", _nodes,
               lambda m: ["2", "8"],
               "at worst all share what one node got, at best each gets as much"),
        WhatIf("jobs", "so many of these jobs at once here; the rate is one job's", _jobs,
               lambda m: ["2"]),
        WhatIf("accelerator", f"another accelerator: {', '.join(ACCELERATORS)}", _accelerator,
               lambda m: [*ACCELERATORS], "ResNet-50 at the table's batch", tabled=True),
    )
}  # fmt: skip
#: Another pipeline of the suite: what it gives was measured.
PIPELINE = "pipeline"
#: Decoding on the GPU: a case of the suite that did it.
GPU_DECODE = "gpu-decode"
GPU_NOTE = (
    "at best decoding hides behind the steps of the same GPU, at worst they take turns; its memory "
    "is not judged"
)
