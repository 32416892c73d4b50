"""A spec's text -> the plan that it would have, before anything is made."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from iobench.core import registry, units
from iobench.core.cases import Case, Dataset, Plan
from iobench.core.dataset import MARKER
from iobench.core.errors import BackendUnavailable, IobenchError, SpecError, shown
from iobench.host import files, gpus
from iobench.plan import cost, unused
from iobench.plan.contrasts import contrasts, without_limits
from iobench.plan.resolve import Here, resolve
from iobench.plan.rules import check
from iobench.spec import data_rules, load
from iobench.spec.schema import Spec


class Foreseen(NamedTuple):
    """A spec, its plan as if all its runtimes could run here, and what its user should know."""

    spec: Spec
    plan: Plan
    notes: Sequence[str]


def judged(
    text: str, where: str, *, image: str | None = None, data: Path | None = None,
    budget: str | None = None,
) -> Foreseen:  # fmt: skip
    """Judge a spec before anything is made.

    ``image``: its ``case.image``.  ``data``: the user's own folder, in place of the recipe.
    ``budget``: in place of the spec's.  Raises SpecError or DatasetError for what cannot be run,
    BackendUnavailable for a device that is not here.
    """
    spec = load.parse_text(text, where, image=image)
    try:
        plan = _planned(spec, data, units.seconds(budget or spec.budget))
    except IobenchError as error:
        raise type(error)(f"{where}: {error}") from None
    found = [
        *unused.notes(spec, plan), *_unused_samples(spec, data), *cost.shortfall(plan),
        *without_limits(contrasts(plan.rules, {})),
    ]  # fmt: skip
    return Foreseen(spec, plan, found)


def _unused_samples(spec: Spec, data: Path | None) -> Iterator[str]:
    """Yield the keys of ``[dataset]`` that the user's own folder replaces."""
    if data is not None and (data / MARKER).exists():
        for key in ("samples", "seed"):
            if key in spec.dataset.model_fields_set:
                yield f"dataset.{key} has no effect: --data names the samples"


def _planned(spec: Spec, data: Path | None, budget_s: float) -> Plan:
    check(spec)
    samples = data_rules.foreseen(spec.dataset, data)
    count = samples.number or spec.dataset.samples
    dataset = Dataset("data", "", count, 0, 1, spec.dataset.seed, "", spec.dataset.recipe)
    plan = resolve(spec, Here(dataset), budget_s, "")
    if not plan.trials and not plan.rules:
        raise SpecError(
            f"ladder.stages = {shown(spec.ladder.stages)}: no case can run any of them, and "
            "nothing is compared: there is nothing to run; give other stages or caches"
        )
    data_rules.check(plan.cases, samples)
    for case in plan.cases:
        check_device(case)
    if any(registry.load("placements", case.placement).stage_to for case in plan.cases):
        check_folder(spec.stage_to)
    return plan


def check_folder(stage_to: str) -> None:
    """Raise SpecError for a folder that copies of the data cannot be written to."""
    try:
        above = files.nearest(Path(stage_to).absolute())
        able = above.is_dir() and os.access(above, os.W_OK) and stage_to[0] not in "~$"
    except (OSError, ValueError):
        able = False
    if not able:
        raise SpecError(
            f"stage_to = {shown(stage_to)}; allowed: a path, as it is, of a folder that can be "
            "written"
        )


def check_device(case: Case) -> None:
    """Raise BackendUnavailable for a case that asks for more GPUs than this node has."""
    wanted = [
        (f"{axis}_options.{key}", value)
        for axis in ("trainer", "loader")
        for key, value in getattr(case, f"{axis}_options").items()
        if (key == "device" and value != "cpu") or (key == "pin_memory" and value is True)
    ]
    if wanted and (reason := gpus.absent()):
        key, value = wanted[0]
        allowed = "false" if value is True else "cpu"
        raise BackendUnavailable(
            f"case {case.label}: {key} = {shown(value)}: {reason}; allowed here: {allowed}"
        )
    if wanted and case.nodes == 1 and (reason := gpus.too_few(case.ranks_per_node)):
        raise BackendUnavailable(f"case {case.label}: {reason}")
