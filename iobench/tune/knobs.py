"""What can be changed in a case, one row each: docs/tuning.md.  A knob more is a row more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from iobench.core import registry
from iobench.core.cases import Case
from iobench.core.options import accepted
from iobench.core.order import shard_buffer
from iobench.tune.bounds import CORES, OVERLAP, PREPARE, READ
from iobench.tune.settings import TuneSettings, Value

_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
#: Workers beyond the cores hide latency: so many times the cores may be tried, in steps; where what
#: was measured asks for more, so many times.
MORE_WORKERS, MOST_WORKERS = 8, 24


@dataclasses.dataclass(frozen=True)
class Knob:
    """``field``: of a case, or ``axis_options.NAME``.  ``moves``: the parts that it acts on.

    ``values``: those that make sense for a case of this pipeline, none where it has no such knob.
    ``ordered``: neighbouring values behave alike.  ``usual``: of an option that is not set.
    ``far``: the largest value is tried first, for it seldom costs speed.  ``start``: a value that a
    search begins with, beside the usual ones; none where nothing measured speaks for one.
    """

    field: str
    about: str
    moves: tuple[str, ...]
    values: Callable[[Case, TuneSettings], Sequence[Value]]
    ordered: bool = True
    usual: Value | None = None
    far: bool = False
    start: Value | None = None

    def name(self, case: Case) -> str:
        """Return the parameter's name in the search: options belong to their member of an axis."""
        axis, _, option = self.field.partition("_options.")
        return f"{axis}.{getattr(case, axis)}.{option}" if option else self.field

    def value(self, case: Case) -> Value:
        """Return the value that a case has."""
        axis, _, option = self.field.partition(".")
        found: Any = getattr(case, axis)
        value: Value = found.get(option, self.usual) if option else found
        return value

    def set(self, case: Case, value: Value) -> Case:
        """Return the case with this value."""
        axis, _, option = self.field.partition(".")
        if not option:
            return dataclasses.replace(case, **{axis: value})  # type: ignore[arg-type]
        options = {k: v for k, v in getattr(case, axis).items() if k != option}
        if value != self.usual:
            options[option] = value
        return dataclasses.replace(case, **{axis: options})  # type: ignore[arg-type]


def _workers(case: Case, asked: TuneSettings) -> Sequence[Value]:
    if registry.load("loaders", case.loader).threads:
        return ()
    return _counts(case, asked.cores, MORE_WORKERS * asked.cores)


def _counts(case: Case, cores: int, most: int) -> list[Value]:
    return sorted({*(n for n in _COUNTS if n <= most), cores, case.workers} - {0})


def waiting(knob: Knob, useful: int, cores: int) -> Knob:
    """Return the knob of workers with more values than usual where so many workers are useful.

    Such workers wait for their data and leave the cores to others.
    """
    if useful <= MORE_WORKERS * cores:
        return knob
    most = MOST_WORKERS * cores

    def values(case: Case, asked: TuneSettings) -> Sequence[Value]:
        return _counts(case, cores, most) if knob.values(case, asked) else ()

    start = max(n for n in _COUNTS if n <= min(useful, most))
    return dataclasses.replace(knob, values=values, start=start)


def _prefetch(case: Case, asked: TuneSettings) -> Sequence[Value]:
    return (1, 2, 4, 8) if case.loader in ("torch", "dali", "spdl", "grain", "webdataset") else ()


def _threads(case: Case, asked: TuneSettings) -> Sequence[Value]:
    return (1, 2, 4, 8) if case.loader == "torch" else ()


def _in_order(case: Case, asked: TuneSettings) -> Sequence[Value]:
    return (True, False) if case.loader in ("torch", "spdl") else ()


def _decoder(case: Case, asked: TuneSettings) -> Sequence[Value]:
    if not registry.load("loaders", case.loader).decodes or case.content != "jpeg":
        return ()
    here = [n for n in registry.names("decoders") if not registry.unavailable("decoders", n)]
    return [case.decoder, *(name for name in here if name != case.decoder)]


def _order(case: Case, asked: TuneSettings) -> Sequence[Value]:
    if not asked.any_order or shard_buffer(case.order):  # an order of the loader's own
        return ()
    return list(dict.fromkeys((case.order, "shuffled", "stored")))


def _batch(case: Case, asked: TuneSettings) -> Sequence[Value]:
    return asked.batches


def _pin(case: Case, asked: TuneSettings) -> Sequence[Value]:
    on_gpu = case.loader == "torch" and case.trains_on_gpu
    return (True, False) if on_gpu else ()


def _start_method(case: Case, asked: TuneSettings) -> Sequence[Value]:
    return ("fork", "spawn") if case.loader == "torch" and case.workers else ()


def _reader(case: Case, asked: TuneSettings) -> Sequence[Value]:
    own = registry.load("loaders", case.loader).native
    return ("native", "external") if case.loader == "dali" and case.stored_form in own else ()


def _mmap(case: Case, asked: TuneSettings) -> Sequence[Value]:
    own = case.loader_options.get("reader", "native") == "native"
    return (True, False) if own and _reader(case, asked) else ()


def _readahead(case: Case, asked: TuneSettings) -> Sequence[Value]:
    make = registry.load("formats", case.format).make
    read = case.stored_form not in registry.load("loaders", case.loader).native
    return (True, False) if read and "readahead" in accepted(make) else ()


def _trainer_threads(case: Case, asked: TuneSettings) -> Sequence[Value]:
    return sorted({0, 1, max(1, asked.cores - 1), asked.cores}) if case.trainer == "torch" else ()


KNOBS = (
    Knob("workers", "processes or threads that load", (READ, PREPARE, OVERLAP, CORES), _workers),
    Knob("prefetch", "batches ahead", (OVERLAP,), _prefetch, far=True),
    Knob("decoder", "library that decodes JPEGs", (PREPARE,), _decoder, ordered=False),
    Knob("loader_options.in_order", "whether batches may overtake", (OVERLAP,), _in_order,
         ordered=False, usual=True),
    Knob("loader_options.threads", "reads at a time in a worker", (READ,), _threads, usual=1),
    Knob("loader_options.pin_memory", "batches in page-locked memory", (OVERLAP,), _pin,
         ordered=False, usual=True),
    Knob("loader_options.start_method", "how workers start", (CORES,), _start_method,
         ordered=False, usual="fork"),
    Knob("loader_options.reader", "DALI's own reader, or the format's", (READ, PREPARE), _reader,
         ordered=False, usual="native"),
    Knob("loader_options.mmap", "whether DALI's reader maps files", (READ,), _mmap,
         ordered=False, usual=True),
    Knob("format_options.readahead", "the kernel's read-ahead", (READ,), _readahead,
         ordered=False, usual=True),
    Knob("order", "order of the samples", (READ,), _order, ordered=False),
    Knob("trainer_options.threads", "threads of the trainer", (CORES,), _trainer_threads,
         usual=0),
    Knob("batch", "samples a step", (READ, PREPARE, OVERLAP, CORES), _batch),
)  # fmt: skip
