"""TOML -> cases: a spec is validated whole before anything runs.

Every error is one line with the key, the value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic
import tomllib

from iobench.core import explain, registry
from iobench.core.cases import Case
from iobench.core.errors import SpecError, shown
from iobench.core.options import HUGE, check_options
from iobench.core.units import nbytes, seconds
from iobench.data import toml_files
from iobench.spec import contrast_rules, workloads
from iobench.spec.case_rules import check_case, out_of_reach
from iobench.spec.labels import PIPELINE_FIELDS, label
from iobench.spec.schema import MOST_CASES, CaseSpec, ExtraCase, Spec

SPECS = Path(__file__).parent / "shipped"
#: Keys whose options mean nothing to another member.
_WITH_OPTIONS = ("trainer", "runtime", "launcher")


def shipped() -> dict[str, str]:
    """Return name -> what it is for, of the specs that come with iobench."""
    specs = {path.stem: tomllib.loads(path.read_text()) for path in sorted(SPECS.glob("*.toml"))}
    return {name: str(spec.get("about", "")) for name, spec in specs.items()}


def load(name_or_path: str) -> Spec:
    """Read and validate a spec: a file, or the name of a shipped one; raises SpecError."""
    return parse_text(*read(name_or_path))


def read(name_or_path: str) -> tuple[str, str]:
    """Return the text of a spec and the path of its file; raises SpecError.

    A workload file of MLPerf Storage (.yaml) is read as the spec of it.
    """
    path = Path(name_or_path)
    if path.suffix in workloads.SUFFIXES:
        return workloads.spec_text(workloads.read(path)), str(path)
    if not path.suffix and not os.path.exists(path):
        path = SPECS / f"{name_or_path}.toml"
        if not os.path.isfile(path):
            raise SpecError(
                f"no spec {shown(name_or_path)}: give a .toml file or one of: "
                f"{', '.join(shipped())}"
            )
    return toml_files.read(path, f"spec {path}", SpecError), str(path)


def parse_text(text: str, where: str, *, image: str | None = None) -> Spec:
    """Validate the TOML text of a spec; ``image``: its ``case.image``.  Raises SpecError."""
    document = toml_files.parse(text, f"spec {where}", SpecError)
    if image and isinstance(case := document.setdefault("case", {}), dict):
        case["image"] = image
    return parse(document, where=where)


def parse(document: Mapping[str, Any], where: str = "spec") -> Spec:
    """Validate a spec already read from TOML, and every case it asks for."""
    try:
        spec = Spec.model_validate(document)
    except pydantic.ValidationError as error:
        raise SpecError(f"{where}: {explain.first(error, Spec)}") from None
    try:
        _check_values(document)
        seconds(spec.budget)
        servers_cache_bytes(spec)
        for i, wanted in enumerate(spec.exclude):
            contrast_rules.check_filter(f"exclude[{i}]", wanted)
        cases = expand(spec)
        used = {case.placement for case in cases}
        staged = sorted(n for n in used if registry.load("placements", n).stage_to)
        if staged and not spec.stage_to:
            raise SpecError(
                f"placement {staged[0]!r} needs a folder to copy to: set stage_to in the spec, "
                'such as stage_to = "/local/scratch"'
            )
        contrast_rules.check_ladder(spec.ladder, spec.cases)
        for i, contrast in enumerate(spec.contrasts):
            contrast_rules.check(f"contrasts[{i}]", contrast, named(spec, contrast.over))
            if contrast.base != "fastest" and contrast.over == "pipeline":
                _check_base(f"contrasts[{i}].base", str(contrast.base))
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None
    return spec


def servers_cache_bytes(spec: Spec) -> int:
    """Return the stated size of the servers' cache in bytes, 0 for none; raises SpecError."""
    return nbytes(spec.servers_cache, "servers_cache") if spec.servers_cache else 0


def _check_base(where: str, base: str) -> None:
    try:
        pipeline(base)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def _check_values(value: Any, at: Sequence[str | int] = ()) -> None:
    """Raise SpecError for control characters, numbers that are none, a value twice in a list."""
    table = isinstance(value, Mapping)
    seen: set[str] = set()
    for key, each in value.items() if table else enumerate(value):
        place = explain.dotted("", (*at, key))
        if not table and repr(each) in seen:
            above = explain.dotted("", at)
            raise SpecError(f"{above}: {shown(each)} is named twice; name it once")
        seen.add(repr(each))
        if isinstance(each, Mapping | list):
            _check_values(each, (*at, key))
        elif any(unicodedata.category(c)[0] == "C" for c in str(each)):
            raise SpecError(f"{place} = {shown(each)}; allowed: text without control characters")
        elif isinstance(each, float | int) and not abs(each) < HUGE:  # nan is not less either
            raise SpecError(f"{place} = {shown(each)}; allowed: a finite number of 64 bits")


def expand(spec: Spec) -> tuple[Case, ...]:
    """Return the matrix's cases, then the extra ones; labels are unique."""
    built = _matrix(spec)
    # all of them out of reach: the first says why
    built = [(case, where) for case, where in built if not out_of_reach(case)] or built
    for i, extra in enumerate(spec.cases):
        case = dataclasses.replace(_case(spec, extra, f"cases[{i}]"), name=extra.name or "")
        built.append((case, f"cases[{i}]"))
    _check_options(spec.case)
    for case, where in built:
        check_case(case, where)
    built = [(dataclasses.replace(case, layout=_layout(case)), where) for case, where in built]
    made = [case for case, _ in built]
    if not made:
        raise SpecError("exclude: it leaves no case; leave out fewer")
    places: dict[str, str] = {}
    for case, where in built:
        if (other := places.setdefault(repr(case), where)) is not where:
            raise SpecError(f"{where}: the same case as {other}; remove one of the two")
    usual = _case(spec, CaseSpec(), "case") if len(spec.matrix) > 1 else None
    named = label(made, len(spec.cases) if spec.matrix else 0, usual)
    for i, case in enumerate(named):
        if case.name and any(case.label == other.label for other in named[:i]):
            raise SpecError(f"cases: {case.name!r} names two cases; give each its own name")
    return named


def left_out(spec: Spec) -> list[str]:
    """Return the cells of the matrix that no case is made of, and why, one line a reason."""
    found: dict[str, list[str]] = {}
    for case, _ in _matrix(spec):
        if reason := out_of_reach(case):
            found.setdefault(reason, []).append(f"{case.pipeline} with runtime {case.runtime}")
    return [f"{', '.join(dict.fromkeys(cells))}: left out: {why}" for why, cells in found.items()]


def _matrix(spec: Spec) -> list[tuple[Case, str]]:
    """Return the case of every cell, not judged yet, and where it stands in the spec.

    Those that the spec excludes are left out.  A case that several tables share counts once.
    """
    built: list[tuple[Case, str]] = []
    for cell in _cells(spec):
        where = f"matrix {shown(cell)}" if cell else "case"
        try:
            overrides = CaseSpec.model_validate(cell)
        except pydantic.ValidationError as error:
            raise SpecError(explain.first(error, CaseSpec, "matrix")) from None
        case = _case(spec, overrides, where)
        if any(contrast_rules.matches(case, wanted) for wanted in spec.exclude):
            continue
        if len(spec.matrix) < 2 or all(case != other for other, _ in built):
            built.append((case, where))
    return built


def _cells(spec: Spec) -> list[dict[str, Any]]:
    """Return key -> value of every cell of the tables; [{}] is the case as it is, alone."""
    cells: list[dict[str, Any]] = []
    for table in spec.matrix:
        contrast_rules.check_keys("matrix", sorted(table))
        for key, values in table.items():
            contrast_rules.not_empty(f"matrix.{key}", values, "give at least one value")
        count = len(cells) + math.prod(map(len, table.values()))
        if count > MOST_CASES:
            raise SpecError(
                f"matrix: its values make {count} cases or more; allowed: at most {MOST_CASES}"
            )
        cells += [dict(zip(table, v, strict=True)) for v in itertools.product(*table.values())]
    return cells if spec.matrix or spec.cases else [{}]


def named(spec: Spec, key: str) -> list[Any]:
    """Return the values that the matrix names of ``key``, each once; names: of ``[[cases]]``."""
    every = [value for table in spec.matrix for value in table.get(key, [])]
    if key == contrast_rules.NAME:
        every = [case.name for case in spec.cases if case.name]
    return [value for i, value in enumerate(every) if value not in every[:i]]


def extra_cases(spec: Spec, cases: Sequence[Case]) -> dict[str, ExtraCase]:
    """Return label -> the ``[[cases]]`` entry it came from."""
    tail = cases[len(cases) - len(spec.cases) :]
    return {case.label: extra for case, extra in zip(tail, spec.cases, strict=True)}


def pipeline(name: str) -> tuple[str, str, str]:
    """Return (loader, format, content) of ``loader:format[-content]`` or an alias."""
    full = registry.ALIASES.get(name, name)
    loader, colon, stored = full.partition(":")
    if not colon:
        raise SpecError(
            f"unknown pipeline {name!r}; write loader:format, or one of "
            f"{', '.join(registry.ALIASES)}"
        )
    form, dash, content = stored.partition("-")
    registry.load("loaders", loader)
    registry.load("formats", form)
    if dash and content not in ("raw", "float"):
        raise SpecError(f"pipeline {name!r}: content {content!r} is unknown; allowed: raw, float")
    return loader, form, content or "jpeg"


def _case(spec: Spec, overrides: CaseSpec, where: str) -> Case:
    fields: dict[str, Any] = {"seed": spec.seed}
    for layer in (spec.case, overrides):
        for key in CaseSpec.model_fields:
            if key in layer.model_fields_set and key != "content":
                try:
                    _set(fields, key, getattr(layer, key))
                except SpecError as error:
                    raise SpecError(f"{where}: {error}") from None
    fields.update(_content(spec.case, overrides, where))
    for key in _WITH_OPTIONS:  # after a change of member its own options count
        owner, options = getattr(Case, key), f"{key}_options"
        for layer in (spec.case, overrides):
            owner = getattr(layer, key) or owner
            if options in layer.model_fields_set and owner == fields.get(key, owner):
                fields[options] = {**fields.get(options, {}), **getattr(layer, options)}
    _share_out(fields, where)
    threads = registry.load("loaders", fields.get("loader", Case.loader)).threads
    case = Case(**{**fields, **({"workers": threads} if threads else {})})
    if "image" not in fields:
        case = dataclasses.replace(case, image=registry.home_stack(case.trainer, case.loader))
    return case


def _share_out(fields: dict[str, Any], where: str) -> None:
    """Set a case's ``world_size`` by its ``ranks_per_node``, which is no field of it."""
    each, nodes = fields.pop("ranks_per_node", None), fields.get("nodes", 1)
    if each is None:
        return
    said = fields.setdefault("world_size", nodes * each)
    if said != nodes * each:
        raise SpecError(
            f"{where}: world_size = {said}, but nodes = {nodes} with ranks_per_node = {each} make "
            f"{nodes * each}; leave one of the three out"
        )


def _layout(case: Case) -> str:
    options = {k: v for k, v in case.format_options.items() if k != "side"}
    return registry.layout_of(case.format, options)


def _content(defaults: CaseSpec, overrides: CaseSpec, where: str) -> dict[str, str]:
    """Return the content that a case names beside its pipeline; raises SpecError for two."""
    content = overrides.content or defaults.content
    name = overrides.pipeline or defaults.pipeline or ""
    if content is None:
        return {}
    if "-" in name.partition(":")[2] and pipeline(name)[2] != content:
        raise SpecError(
            f"{where}: content = {content!r} beside pipeline {name!r}, which names its own; leave "
            "one of the two out"
        )
    return {"content": content}


def _check_options(defaults: CaseSpec) -> None:
    """Judge the options of ``[case]`` by the members they are of, whom every case may replace."""
    for key in _WITH_OPTIONS:
        name = getattr(defaults, key) or getattr(Case, key)
        make = registry.load(f"{key}s", name).make
        check_options(
            f"case.{key}_options of {key} {name}", make, getattr(defaults, f"{key}_options")
        )


def _set(fields: dict[str, Any], key: str, value: Any) -> None:
    """Set what one key of a spec says of a case."""
    if key == "pipeline":
        fields.update(zip(PIPELINE_FIELDS, pipeline(value), strict=True))
    elif value is None:
        return
    elif key == "memory":
        fields["memory_bytes"] = nbytes(value)
    elif key in _WITH_OPTIONS and value != fields.get(key):
        fields.update({key: value, f"{key}_options": {}})
    elif isinstance(value, dict):
        fields[key] = {**fields.get(key, {}), **value}
    else:
        fields[key] = value
