"""A spec and what is here -> the plan, once.  Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import iobench
from iobench.core import stages, units
from iobench.core.cases import Dataset, Plan
from iobench.core.errors import CacheStateError
from iobench.plan.blocks import blocks
from iobench.plan.contrasts import contrasts
from iobench.plan.cost import guess_s
from iobench.plan.ladder import ladder
from iobench.plan.rules import rules
from iobench.spec.load import expand, left_out, named, servers_cache_bytes
from iobench.spec.schema import Spec


@dataclasses.dataclass(frozen=True)
class Here:
    """What there is of what a spec asks for.

    ``missing``: runtime of the matrix -> why it cannot run here.  ``no_cold``: why files on the
    dataset's mount are never cold ("": they can be).
    """

    dataset: Dataset
    missing: Mapping[str, str] = dataclasses.field(default_factory=dict)
    no_cold: str = ""
    notes: Sequence[str] = ()


def resolve(spec: Spec, here: Here, budget_s: float, created: str) -> Plan:
    """Return the plan of a suite with the ladder's trials, all cases on the dataset's mount.

    Raises CacheStateError where ``no_cold`` leaves nothing to run.
    """
    left, notes = fit(spec, here.missing, here.no_cold)
    cases = tuple(dataclasses.replace(c, location=here.dataset.root) for c in expand(left))
    return Plan(
        name=spec.name,
        created=created,
        seed=spec.seed,
        budget_s=budget_s,
        usual_budget_s=units.seconds(spec.budget),
        dataset=here.dataset,
        cases=cases,
        trials=tuple(ladder(left, cases)),
        rules=rules(left, cases),
        limit_s=spec.limit_s,
        compute_s=spec.compute_s,
        max_repeated_pairs=spec.max_repeated_pairs,
        allow_drop_caches=spec.allow_drop_caches,
        first_touch=spec.first_touch,
        servers_cache_bytes=servers_cache_bytes(spec),
        mlperf=spec.mlperf.model_dump() if spec.mlperf else {},
        version=iobench.__version__,
        notes=(*notes, *here.notes),
    )


def fit(spec: Spec, missing: Mapping[str, str], no_cold: str = "") -> tuple[Spec, list[str]]:
    """Return the part of a spec that can run here, and notes on what is left out.

    ``missing``, ``no_cold``: as in :class:`Here`.  Raises CacheStateError where nothing is left.
    """
    left = _with_runtimes(spec, missing)
    notes = [f"runtime {name} is left out: {reason}" for name, reason in missing.items()]
    notes += left_out(left)
    warm = _warm(left, no_cold) if no_cold else left
    if warm.model_dump() != left.model_dump():
        notes.append(f"no cold, cached-fraction and ceiling rungs: {no_cold}")
    return warm, notes


def estimate_s(plan: Plan) -> float:
    """Return a first guess of the whole suite's seconds, contrasts included."""
    climbing = sum(guess_s(t, plan.compute_s, plan.dataset.samples) for t in plan.trials)
    trials = blocks(contrasts(plan.rules, {}), plan.cases, seed=plan.seed, start=1)
    whole = climbing + sum(guess_s(t, plan.compute_s, plan.dataset.samples) for t in trials)
    return min(max(plan.budget_s, climbing), whole)


def _with_runtimes(spec: Spec, missing: Mapping[str, str]) -> Spec:
    """Drop runtimes from the matrix; contrasts that say ``instead`` stay where one is left."""
    if named(spec, "runtime"):
        spec = spec.model_copy(update={"matrix": tuple(_tables_left(spec, missing))})
    alone = len({case.runtime for case in expand(spec)}) == 1
    kept = tuple(c for c in spec.contrasts if (c.over != "runtime" if alone else not c.instead))
    return spec.model_copy(update={"contrasts": kept})


def _tables_left(spec: Spec, missing: Mapping[str, str]) -> Iterator[dict[str, list[object]]]:
    """Yield the matrix's tables with the runtimes that are left; the only one keeps ``bare``."""
    for table in spec.matrix:
        names = [name for name in table.get("runtime", []) if str(name) not in missing]
        if "runtime" not in table:
            yield table
        elif names or len(spec.matrix) == 1:
            yield {**table, "runtime": names or ["bare"]}


def _warm(spec: Spec, no_cold: str) -> Spec:
    """Drop what a mount without cold files cannot give: cold, cached fractions, the ceiling."""
    if "warm" not in spec.ladder.caches:
        raise CacheStateError(f"the spec asks for no warm rung, and {no_cold}")

    def hot(wanted: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return wanted and tuple(s for s in wanted if stages.of(s).caches != ("cold",))

    ladder = spec.ladder.model_copy(update={"caches": ("warm",), "stages": hot(spec.ladder.stages)})
    cases = tuple(c.model_copy(update={"stages": hot(c.stages)}) for c in spec.cases)
    left = [c for c in spec.contrasts if "warm" in c.caches]
    contrasts = tuple(c.model_copy(update={"caches": ("warm",)}) for c in left)
    return spec.model_copy(update={"ladder": ladder, "cases": cases, "contrasts": contrasts})
