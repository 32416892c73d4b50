"""A user's spec -> the plan that a search begins with: the ladder of the current settings."""

from __future__ import annotations

import dataclasses

from iobench.core.cases import Case, Plan
from iobench.core.errors import SpecError, near
from iobench.plan.ladder import number
from iobench.spec.load import expand
from iobench.spec.schema import Spec
from iobench.tune.code import spec_text
from iobench.tune.settings import TuneSettings, default_of
from iobench.tune.space import named, space

#: Repeats of each rung of the ceiling; a second one follows where the answer is close.
REPEATS = 1
#: Rungs of the ceiling: what the search is guided by.
CEILING = ("read", "load", "compute", "train")
#: Of cold training's ceiling, what the search does not use.
UNUSED_COLD = (("read", "warm"), ("train", "warm"))


def current_of(spec: Spec, wanted: str = "") -> Case:
    """Return the case that is tuned; raises SpecError where the spec has several, or none so named.

    ``wanted``: its label.
    """
    cases = {case.label: case for case in expand(spec)}
    if wanted and wanted not in cases:
        raise SpecError(f"--case {wanted!r} is no case of this spec{near(wanted, sorted(cases))}")
    if len(cases) > 1 and not wanted:
        raise SpecError(f"the spec has {len(cases)} cases: name one by --case: {', '.join(cases)}")
    found = cases[wanted] if wanted else next(iter(cases.values()))
    return dataclasses.replace(found, name="")  # the others' labels say what differs from it


def ceiling_text(case: Case, spec: Spec, cache: str) -> str:
    """Return the spec of what is measured before the search: all parts of the current settings."""
    cold = cache == "cold"
    ladder = {
        "stages": list(CEILING),
        "caches": ["cold", "warm"] if cold else ["warm"],
        "repeats": REPEATS,
        "probe": False,
        "digest": False,
    }
    return spec_text(case, spec, f"tune-{spec.name}", f"tune: {spec.about}"[:200], ladder)


def with_default(plan: Plan, asked: TuneSettings) -> tuple[Plan, TuneSettings]:
    """Return the plan with the library's defaults, unless they are the current settings.

    The search does not run them, the proof does.  The settings come back with the names of both.
    """
    current = plan.cases[0]
    if asked.cache == "cold":  # what cached files give is no limit of cold training
        kept = [t for t in plan.trials if (t.stage, t.cache) not in UNUSED_COLD]
        plan = dataclasses.replace(plan, trials=tuple(number(kept, start=1)))
    default = default_of(current)
    asked = dataclasses.replace(asked, current=current.label)
    if default == current:
        return plan, asked
    default = named(default, current)
    plan = dataclasses.replace(plan, cases=(current, default))
    return plan, dataclasses.replace(asked, default=default.label)


def stored_forms(plan: Plan, asked: TuneSettings) -> list[Case]:
    """Return a case of each pipeline that the search may try: their formats are to be made."""
    return list(space(plan.cases[0], asked, None).pipelines.values())
