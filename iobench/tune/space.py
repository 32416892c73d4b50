"""The settings that a search may try: pipelines, and what can be changed in each."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from iobench.core import registry, transforms
from iobench.core.cases import Case, to_json
from iobench.core.errors import IobenchError
from iobench.core.order import shard_buffer
from iobench.spec.case_rules import check_case
from iobench.spec.labels import label
from iobench.tune.bounds import PREPARE, READ, Bounds
from iobench.tune.code import WRITERS
from iobench.tune.knobs import KNOBS, Knob, waiting
from iobench.tune.settings import DEFAULTS, TuneSettings, Value, default_of

#: Given a parameter's name, its values and whether they are ordered: the one that is taken.
Choose = Callable[[str, Sequence[Value], bool], Value]
PIPELINE = "pipeline"
#: Order of a loader that streams whole shards, where any may be tried.
SHARDS = "shards:1000"
#: Knobs that are turned in a script from outside: keywords of its DataLoader, and torch's threads.
IN_SCRIPTS = ("workers", "prefetch", "loader_options.in_order", "trainer_options.threads")


@dataclasses.dataclass(frozen=True)
class Space:
    """``pipelines``: name -> the current case with that loader and format.

    ``knobs``: those that are tried.  ``left_out``: knob or pipeline -> why it is not.
    """

    current: Case
    asked: TuneSettings
    pipelines: Mapping[str, Case]
    knobs: Sequence[Knob]
    left_out: Mapping[str, str]

    def case(self, choose: Choose) -> Case:
        """Return the case whose settings are chosen one after the other."""
        names = list(self.pipelines)
        case = self.pipelines[str(choose(PIPELINE, names, False)) if names[1:] else names[0]]
        for knob in self.knobs:
            values = knob.values(case, self.asked)
            if len(values) > 1:
                case = knob.set(case, choose(knob.name(case), values, knob.ordered))
            elif values:
                case = knob.set(case, values[0])
        return case

    def starts(self) -> list[Case]:
        """Return where a search begins: every pipeline on all cores, each decoder of the first, and
        its values that what was measured speaks for (:attr:`Knob.start`).
        """
        found = []
        first, cores = next(iter(self.pipelines)), self.asked.cores
        for name in self.pipelines:
            decoders = self._decoders(name) if name == first else [None]
            found += [self._usual(name, {"workers": cores, "decoder": d}) for d in decoders]
        case = self.pipelines[first]
        starting = [k for k in self.knobs if k.start in k.values(case, self.asked)]
        return found + [self._usual(first, {knob.name(case): knob.start}) for knob in starting]

    def _decoders(self, name: str) -> Sequence[Value | None]:
        knob = next((k for k in self.knobs if k.field == "decoder"), None)
        return (knob and knob.values(self.pipelines[name], self.asked)) or [None]

    def _usual(self, pipeline: str, chosen: Mapping[str, Value | None]) -> Case:
        """Return a pipeline with these values of fields, all others as they are now."""

        def choose(name: str, values: Sequence[Value], ordered: bool) -> Value:
            if name == PIPELINE:
                return pipeline
            wanted = chosen.get(name)
            wanted = getattr(self.current, name, None) if wanted is None else wanted
            if wanted in values:
                return wanted  # type: ignore[return-value]
            return values[0]

        return self.case(choose)

    def steps(self, case: Case) -> list[list[tuple[Knob, Case]]]:
        """Return the cases that differ from ``case`` by one knob, which stands beside each.

        First one of each knob, then another of each, and so on: of an ordered knob the value about
        twice as large (or the largest: :attr:`Knob.far`), and then its neighbours.
        """
        rows: list[Sequence[Value]] = []
        for knob in self.knobs:
            values = knob.values(case, self.asked)
            now = knob.value(case)
            if knob.ordered and now in values:
                rows.append(_around(values, now, far=knob.far))
            else:
                rows.append([v for v in values if v != now])
        return [
            [
                (knob, self._whole(knob.set(case, row[rank])))
                for knob, row in zip(self.knobs, rows, strict=True)
                if rank < len(row)
            ]
            for rank in range(max(map(len, rows), default=0))
        ]

    def _whole(self, case: Case) -> Case:
        """Return the case as the space has it: knobs that another one gives or takes are set."""
        return self.case(lambda name, values, ordered: value_of(case, name, values))

    def count(self, most: int) -> int:
        """Return the number of points; no more than ``most`` are counted."""
        return sum(1 for _ in itertools.islice(self.points(), most))

    def points(self) -> Iterator[Case]:
        """Yield every case of the space that is allowed, once."""
        walk, seen = _Walk(), set()
        while not walk.ended:
            case = self.case(walk.choose)
            if key(case) not in seen and not self.why_not(case):
                seen.add(key(case))
                yield case
            walk.advance()

    def why_not(self, case: Case) -> str:
        """Return why a case is not allowed, "" where it is."""
        most = self.asked.memory_bytes
        if most and queue_bytes(case) > most:
            return (
                f"its queue takes {queue_bytes(case) >> 20} MiB, at most {most >> 20} are allowed"
            )
        return _not_allowed(case)


class _Walk:
    """Takes every combination of choices, the last one changing fastest."""

    def __init__(self) -> None:
        self._taken: list[int] = []
        self._counts: list[int] = []
        self.ended = False

    def choose(self, name: str, values: Sequence[Value], ordered: bool) -> Value:
        """Return the value of this choice in the combination at hand."""
        if len(self._counts) == len(self._taken):
            self._taken.append(0)
        self._counts.append(len(values))
        return values[self._taken[len(self._counts) - 1]]

    def advance(self) -> None:
        """Go on with the next combination; choices may depend on those before them."""
        while self._taken and self._taken[-1] + 1 == self._counts[len(self._taken) - 1]:
            self._taken.pop()
        self._counts = []
        if self._taken:
            self._taken[-1] += 1
        else:
            self.ended = True


def _around(values: Sequence[Value], now: Value, *, far: bool) -> list[Value]:
    """Return what to try of a knob's values: about twice as much (``far``: the most), one more, one
    less.
    """
    at = list(values).index(now)
    above, below = list(values[at + 1 :]), list(values[:at])
    twice = [v for v in above if float(v) >= 2 * float(now) and not far][:1] or above[-1:]
    return list(dict.fromkeys([*twice, *above[:1], *below[-1:]]))


def value_of(case: Case, name: str, values: Sequence[Value]) -> Value:
    """Return a case's value of a parameter of the search; the first of ``values`` if it has none.

    ``name``: as :meth:`Knob.name` gives it.
    """
    axis, dot, rest = name.partition(".")
    if not dot:
        found: Value = getattr(case, axis)
        return found if found in values else values[0]
    option = rest.partition(".")[2]
    options: Mapping[str, Any] = getattr(case, f"{axis}_options")
    value: Value = options.get(option, values[0])
    return value if value in values else values[0]


def _restricted(knob: Knob, asked: TuneSettings) -> Knob:
    """Return a knob that takes those of its values that are asked for; numbers are the user's."""
    wanted = asked.only[knob.field]

    def values(case: Case, asked: TuneSettings) -> Sequence[Value]:
        known = knob.values(case, asked)
        numbers = knob.ordered and known and all(_is_number(v) for v in wanted)
        return sorted(wanted, key=float) if numbers else [v for v in known if v in wanted]

    return dataclasses.replace(knob, values=values)


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def space(current: Case, asked: TuneSettings, limits: Bounds | None) -> Space:
    """Return what is worth trying; ``limits`` None: they are not measured yet, and all may be."""
    left_out: dict[str, str] = {}
    knobs = _knobs(current, asked, limits, left_out)
    pipelines = {current.pipeline: current, **_pipelines(current, asked, limits, left_out)}
    found = Space(current, asked, pipelines, knobs, left_out)
    bad = {n: w for n, c in pipelines.items() if c is not current and (w := found.why_not(c))}
    kept = {name: case for name, case in pipelines.items() if name not in bad}
    return dataclasses.replace(found, pipelines=kept, left_out={**left_out, **bad})


def _knobs(
    current: Case, asked: TuneSettings, limits: Bounds | None, left_out: dict[str, str]
) -> list[Knob]:
    """Return the knobs worth trying; enter why others are left out."""
    found = []
    for usual in KNOBS:
        chosen = usual.field in asked.only
        knob = _restricted(usual, asked) if chosen else usual
        if limits and knob.field == "workers" and not chosen:
            knob = waiting(knob, limits.useful_workers(), asked.cores)
        reasons = [limits.why_not(part) if limits else "" for part in knob.moves]
        if asked.script and knob.field not in IN_SCRIPTS:
            left_out[knob.field] = "a script sets it in its own code"
        elif asked.only and not chosen:
            left_out[knob.field] = "it is not among what may be changed"
        elif not knob.values(current, asked) and knob.field in ("order", "batch"):
            left_out[knob.field] = "it is tried only if asked for"
        elif all(reasons):
            left_out[knob.field] = reasons[0]
        else:
            found.append(knob)
    return found


def _pipelines(
    current: Case, asked: TuneSettings, limits: Bounds | None, left_out: dict[str, str]
) -> dict[str, Case]:
    """Return the other pipelines worth trying; enter why others are left out."""
    found = {}
    reading, preparing = (limits.why_not(p) if limits else "" for p in (READ, PREPARE))
    for loader, form in () if asked.script else _others(current, asked):
        name = f"{loader}:{form}"
        reason = reading and preparing
        if form != current.format and not reason:
            reason = reading
        if name not in asked.only.get(PIPELINE, () if asked.only else (name,)):
            reason = "it is not among what may be changed"
        case = _moved(current, loader, form, asked)
        reason = reason or _unusable(case)
        if reason:
            left_out[name] = reason
        else:
            found[name] = case
    return found


def _others(current: Case, asked: TuneSettings) -> Iterator[tuple[str, str]]:
    for form in dict.fromkeys((current.format, *asked.formats)):
        for loader in WRITERS:
            if (loader, form) != (current.loader, current.format):
                yield loader, form


def defaults(current: Case, asked: TuneSettings) -> list[Case]:
    """Return the current case with the defaults of each other library that can run it here."""
    loaders = (loader for loader in DEFAULTS if loader != current.loader)
    cases = [default_of(_moved(current, loader, current.format, asked)) for loader in loaders]
    return [named(case, current) for case in cases if not (_unusable(case) or _not_allowed(case))]


def _moved(current: Case, loader: str, form: str, asked: TuneSettings) -> Case:
    """Return the current case with another loader or format; options of one are of no other."""
    options: dict[str, Any] = {} if loader == current.loader else {"loader_options": {}}
    if loader == "webdataset" and asked.any_order and not shard_buffer(current.order):
        options["order"] = SHARDS  # the loader draws its own order, and follows no other
    if not registry.load("loaders", loader).decodes:
        options["decoder"] = Case.decoder
    if form != current.format:
        options["format_options"] = {}
    workers = max(1, current.workers)
    return dataclasses.replace(current, loader=loader, format=form, workers=workers, **options)


def _not_allowed(case: Case) -> str:
    """Return what a spec with this case would be refused for, "" where it would not."""
    try:
        check_case(case, "tune")
    except IobenchError as error:
        return str(error)
    return ""


def _unusable(case: Case) -> str:
    """Return what this machine lacks for a case, "" where nothing."""
    try:
        members = registry.loading(case)
        if case.runtime == "bare":
            here = (registry.unavailable(axis, name) for axis, name in members.items())
            return next(filter(None, here), "")
        return registry.lacking(case)
    except IobenchError as error:
        return str(error)


def ahead(case: Case) -> int:
    """Return how many batches a rank's loader makes ahead of the trainer."""
    batches: int = registry.load("loaders", case.loader).ahead(case.workers, case.prefetch)
    return batches


def queue_bytes(case: Case) -> int:
    """Return the bytes of the batches that wait in a loader's queue and in the trainer's hands."""
    batches = (ahead(case) + 1) * case.world_size
    return batches * transforms.batch_bytes(case.transform, case.batch)


def named(case: Case, current: Case) -> Case:
    """Return the case with a label that names what differs from the current one.

    A script's has the script's name in place of the pipeline, which is not known.
    """
    made = label([current, case], 0, usual=current)[1]
    if current.label.startswith(current.pipeline):
        return made
    return dataclasses.replace(made, label=current.label + made.label.removeprefix(made.pipeline))


def key(case: Case) -> str:
    """Return the hash of a case's settings: two with one hash are measured once."""
    fields: dict[str, Any] = {**to_json(case), "label": ""}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]
