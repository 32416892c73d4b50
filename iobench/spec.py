"""TOML -> cases: the only judge of what fits together.

A spec is validated whole before anything runs.  Every error is one line with the key, the value
and what is allowed.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pydantic
import tomllib

from iobench import codec, contrast_spec, registry, stacks
from iobench.contrast_spec import ContrastSpec, LadderSpec, check_cache
from iobench.errors import SpecError
from iobench.images.model import NAMES as IMAGES
from iobench.model import STAGES, Case
from iobench.options import check_options
from iobench.units import nbytes
from iobench.units import seconds as seconds

SPECS = Path(__file__).parent / "specs"
#: Case fields that a user names by ``pipeline``.
PIPELINE_FIELDS = ("loader", "format", "content")
#: Keys whose options mean nothing to another member.
_WITH_OPTIONS = ("trainer", "runtime")


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class DatasetSpec(_Strict):
    """Which samples: a recipe of ``datasets/``; ``--data`` overrides it."""

    recipe: str = "imagenet-like"
    samples: int = pydantic.Field(default=1280, ge=1)
    seed: int = pydantic.Field(default=1, ge=0)


class CaseSpec(_Strict):
    """One case, or the defaults of all of them; unset keys fall through to the defaults."""

    pipeline: str | None = None
    content: Literal["jpeg", "raw", "float"] | None = None
    trainer: str | None = None
    runtime: str | None = None
    image: str | None = None
    cpus: float | None = pydantic.Field(default=None, ge=0.01, allow_inf_nan=False)
    memory: str | None = None
    launcher: str | None = None
    placement: Literal["bind", "image", "overlay", "tmpfs", "staged"] | None = None
    order: str | None = None
    transform: str | None = None
    batch: int | None = pydantic.Field(default=None, ge=1)
    workers: int | None = pydantic.Field(default=None, ge=0)
    prefetch: int | None = pydantic.Field(default=None, ge=1)
    world_size: int | None = pydantic.Field(default=None, ge=1)
    samples: int | None = pydantic.Field(default=None, ge=1)
    loader_options: dict[str, Any] = {}
    format_options: dict[str, Any] = {}
    trainer_options: dict[str, Any] = {}
    runtime_options: dict[str, Any] = {}


class ExtraCase(CaseSpec):
    """A case beside the matrix, with its own rungs and repeats."""

    stages: tuple[str, ...] | None = None
    repeats: int | None = pydantic.Field(default=None, ge=1)


class Spec(_Strict):
    """A whole suite."""

    name: str = pydantic.Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    about: str = ""
    seed: int = pydantic.Field(default=1, ge=0)
    budget: str = "15m"
    limit_s: float = pydantic.Field(default=120.0, gt=0)
    compute_s: float = pydantic.Field(default=6.0, gt=0)
    max_repeated_pairs: int = pydantic.Field(default=2, ge=0)
    allow_drop_caches: bool = False
    stage_to: str = ""  # folder that placement "staged" copies to
    dataset: DatasetSpec = DatasetSpec()
    case: CaseSpec = CaseSpec()
    matrix: dict[str, list[Any]] = {}
    cases: tuple[ExtraCase, ...] = ()
    ladder: LadderSpec = LadderSpec()
    contrasts: tuple[ContrastSpec, ...] = ()


def shipped() -> dict[str, str]:
    """Return name -> what it is for, of the specs that come with iobench."""
    table = {}
    for path in sorted(SPECS.glob("*.toml")):
        table[path.stem] = str(tomllib.loads(path.read_text()).get("about", ""))
    return table


def load(name_or_path: str) -> Spec:
    """Read and validate a spec: a file, or the name of a shipped one.

    Raises SpecError: one line naming file, key, value and what is allowed.
    """
    path = Path(name_or_path)
    if not path.suffix and not path.exists():
        path = SPECS / f"{name_or_path}.toml"
        if not path.exists():
            raise SpecError(
                f"no spec {name_or_path!r}: give a .toml file or one of: {', '.join(shipped())}"
            )
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise SpecError(f"cannot read spec {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"spec {path} is no TOML: {error}") from error
    return parse(document, where=str(path))


def parse(document: Mapping[str, Any], where: str = "spec") -> Spec:
    """Validate a spec already read from TOML, and every case it asks for."""
    try:
        spec = Spec.model_validate(document)
    except pydantic.ValidationError as error:
        raise SpecError(f"{where}: {_first_error(error)}") from None
    try:
        seconds(spec.budget)
        cases = expand(spec)
        if not spec.stage_to and any(case.placement == "staged" for case in cases):
            raise SpecError(
                "placement 'staged' needs a folder to copy to: set stage_to in the spec, "
                'such as stage_to = "/local/scratch"'
            )
        _check_ladder(spec)
        for i, contrast in enumerate(spec.contrasts):
            contrast_spec.check(f"contrasts[{i}]", contrast, spec.matrix, CaseSpec.model_fields)
            if contrast.base != "fastest" and contrast.over == "pipeline":
                pipeline(str(contrast.base))
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None
    return spec


def expand(spec: Spec) -> tuple[Case, ...]:
    """Return the matrix's cases, then the extra ones; labels are unique."""
    unknown = sorted(set(spec.matrix) - set(CaseSpec.model_fields))
    if unknown:
        allowed = ", ".join(sorted(CaseSpec.model_fields))
        raise SpecError(f"matrix: unknown key {unknown[0]!r}; allowed: {allowed}")
    for key, values in spec.matrix.items():
        if not values:
            raise SpecError(f"matrix.{key}: the list is empty; give at least one value")
    keys = list(spec.matrix)
    cells = [
        dict(zip(keys, values, strict=True)) for values in itertools.product(*spec.matrix.values())
    ]
    made = [_case(spec, _cell(c), f"matrix {c}" if c else "case") for c in cells]
    if spec.cases and not spec.matrix:
        made = []
    made += [_case(spec, extra, f"cases[{i}]") for i, extra in enumerate(spec.cases)]
    if len(set(made_keys := [repr(c) for c in made])) < len(made_keys):
        raise SpecError("two cases are equal; remove one, or change one of its keys")
    return _label(made, len(spec.cases) if spec.matrix else 0)


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


def _cell(values: dict[str, Any]) -> CaseSpec:
    try:
        return CaseSpec.model_validate(values)
    except pydantic.ValidationError as error:
        raise SpecError(f"matrix.{_first_error(error)}") from None


def _case(spec: Spec, overrides: CaseSpec, where: str) -> Case:
    fields: dict[str, Any] = {"seed": spec.seed}
    for layer in (spec.case, overrides):
        for key in layer.model_fields_set & set(CaseSpec.model_fields):
            value = getattr(layer, key)
            try:
                _set(fields, key, value)
            except SpecError as error:
                raise SpecError(f"{where}: {error}") from None
    for layer in (spec.case, overrides):  # after a change of member its own options count
        for key in _WITH_OPTIONS:
            options = f"{key}_options"
            if options in layer.model_fields_set and getattr(layer, key) in (None, fields.get(key)):
                fields[options] = {**fields.get(options, {}), **getattr(layer, options)}
    threads = registry.load("loaders", fields.get("loader", Case.loader)).threads
    case = Case(**{**fields, **({"workers": threads} if threads else {})})
    if "image" not in fields:
        case = dataclasses.replace(case, image=stacks.default_of(case.trainer, case.loader))
    _check_case(case, where)
    return case


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


def _check_case(case: Case, where: str) -> None:
    loader = registry.load("loaders", case.loader)
    form = registry.load("formats", case.format)
    trainer = registry.load("trainers", case.trainer)
    runtime = registry.load("runtimes", case.runtime)
    launcher = registry.load("launchers", case.launcher)
    if loader.formats is not None and case.stored_form not in loader.formats:
        allowed = ", ".join(sorted(loader.formats))
        raise SpecError(
            f"{where}: loader {case.loader!r} cannot read {case.stored_form!r}; it reads: {allowed}"
        )
    if case.content not in form.contents:
        raise SpecError(f"{where}: format {case.format!r} cannot hold {case.content!r} samples")
    kind = case.order.partition(":")[0]
    if not re.fullmatch(r"stored|shuffled|window:[1-9]\d*", case.order):
        raise SpecError(
            f"{where}: order {case.order!r} is unknown; allowed: stored, shuffled, window:N"
        )
    orders = loader_orders(case)
    if orders is not None and kind not in orders:
        raise SpecError(
            f"{where}: {case.pipeline} cannot follow order {case.order!r}; it follows: "
            f"{', '.join(sorted(orders))}"
        )
    if case.transform not in codec.TRANSFORMS:
        allowed = ", ".join(sorted(codec.TRANSFORMS))
        raise SpecError(f"{where}: transform {case.transform!r} is unknown; allowed: {allowed}")
    if loader.transforms is not None and case.transform not in loader.transforms:
        raise SpecError(
            f"{where}: loader {case.loader!r} cannot do transform {case.transform!r}: "
            f"{loader.no_transform}; it does: {', '.join(sorted(loader.transforms))}"
        )
    if trainer.loaders is not None and case.loader not in trainer.loaders:
        raise SpecError(
            f"{where}: trainer {case.trainer!r} goes with loader "
            f"{', '.join(sorted(trainer.loaders))}, not with {case.loader!r}"
        )
    _check_image(case, where)
    for axis, name, make, options in (
        ("loader", case.loader, loader.make, case.loader_options),
        ("format", case.format, form.make, case.format_options),
        ("trainer", case.trainer, trainer.make, case.trainer_options),
        ("runtime", case.runtime, runtime.make, case.runtime_options),
    ):
        check_options(f"{where}: {axis} {name}", make, options)
    try:  # only these two know which of their values are possible
        launcher.make().argv((), world_size=case.world_size)
        trainer.step_s(case.batch, case.trainer_options)
        runtime.make(**case.runtime_options)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def _check_image(case: Case, where: str) -> None:
    """Judge what a case runs in, and whether its data can lie there."""
    runtime = registry.load("runtimes", case.runtime)
    if case.image not in IMAGES:
        raise SpecError(f"{where}: image {case.image!r} is unknown; allowed: {', '.join(IMAGES)}")
    needed = registry.load("trainers", case.trainer).image
    if needed not in ("", case.image):
        raise SpecError(
            f"{where}: trainer {case.trainer!r} runs in image {needed!r}, not in {case.image!r}; "
            "leave image out"
        )
    if case.placement in ("image", "overlay") and not runtime.isolated:
        raise SpecError(
            f"{where}: placement {case.placement!r} needs a container, and runtime "
            f"{case.runtime!r} is none; allowed: bind, tmpfs, staged"
        )
    if case.placement == "overlay" and runtime.no_overlay:
        raise SpecError(
            f"{where}: placement 'overlay' is not possible with runtime {case.runtime!r}: "
            f"{runtime.no_overlay}"
        )


def loader_orders(case: Case) -> frozenset[str] | None:
    """Return the orders the case's loader can follow on its format (None: any)."""
    orders: frozenset[str] | None = registry.load("loaders", case.loader).orders.get(
        case.stored_form
    )
    return orders


def _check_ladder(spec: Spec) -> None:
    for where, stages in [("ladder.stages", spec.ladder.stages)] + [
        (f"cases[{i}].stages", extra.stages or ()) for i, extra in enumerate(spec.cases)
    ]:
        for stage in stages:
            if stage not in STAGES:
                raise SpecError(f"{where}: unknown stage {stage!r}; allowed: {', '.join(STAGES)}")
    for key in ("stages", "caches"):
        if not getattr(spec.ladder, key):
            raise SpecError(f"ladder.{key}: the list is empty; leave it out for the default")
    for cache in spec.ladder.caches:
        check_cache("ladder.caches", cache)
    contrast_spec.check_filter("ladder.only", spec.ladder.only, CaseSpec.model_fields)


def _label(cases: Sequence[Case], extra: int) -> tuple[Case, ...]:
    """Name each case by its pipeline and what tells it from the others.

    The last ``extra`` cases stand beside the matrix: they name what differs from it, so that its
    own labels stay short.
    """
    matrix = cases[: len(cases) - extra] or cases
    out = []
    for i, case in enumerate(cases):
        same = [c for c in matrix if c.pipeline == case.pipeline]
        if i >= len(matrix):
            same = [*(same or matrix), *cases[len(matrix) :]]
        parts = [f"{n}={_short(getattr(case, n))}" for n in _varying(same)]
        out.append(dataclasses.replace(case, label=" ".join([case.pipeline, *parts])))
    return tuple(out)


def _varying(cases: Sequence[Case]) -> list[str]:
    names = [f.name for f in dataclasses.fields(Case) if f.name not in ("label", *PIPELINE_FIELDS)]
    if all(c.image == stacks.default_of(c.trainer, c.loader) for c in cases):
        names.remove("image")  # it follows from the others
    return [n for n in names if len({repr(getattr(c, n)) for c in cases}) > 1]


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{k}:{v}" for k, v in value.items()) or "-"
    return str(value)


def _first_error(error: pydantic.ValidationError, prefix: str = "") -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join([prefix] * bool(prefix) + [str(p) for p in first["loc"]])
    if first["type"] == "missing":
        return f"{key}: is missing"
    if first["type"] == "extra_forbidden":
        return f"{key}: unknown key (value {first['input']!r}){_near(key)}"
    return f"{key} = {first.get('input')!r}: {first['msg']}"


def _near(key: str) -> str:
    model: Any = Spec
    *parents, _ = key.split(".")
    for part in parents:
        if part.isdigit():
            continue
        hint = model.model_fields.get(part)
        found = _models(hint.annotation) if hint else []
        if not found:
            return ""
        model = found[0]
    return f"; allowed here: {', '.join(sorted(model.model_fields))}"


def _models(annotation: Any) -> list[type[pydantic.BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [m for a in typing.get_args(annotation) for m in _models(a)]
