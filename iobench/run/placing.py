"""Where a case's data lies: on the mount under test, or put somewhere before the first trial.

docs/method.md, "Data placement".
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from iobench.backends.placements import _content
from iobench.backends.placements._content import Content
from iobench.core import registry
from iobench.core.cases import Case, Dataset, Placement, Plan
from iobench.core.clock import clock
from iobench.core.errors import DatasetError
from iobench.core.protocols import ImageUse, Placing, Say, Site
from iobench.core.registry import runtime_of
from iobench.host import locks, probes
from iobench.host.agent import LOCAL
from iobench.run import placed_folders

#: Share of the effective memory that copies may take: the trials need the rest.
MEMORY_SHARE = 0.5

Images = Mapping[str, ImageUse]


def dataset_of(dataset: Dataset, placement: Placement | None) -> Dataset:
    """Return the dataset as it lies on this host: the original, or what was put somewhere."""
    if placement is None or not placement.files:
        return dataset
    files = Path(placement.files)
    return _content.at(dataset, files.parent if files.is_file() else files)


def by_location(plan: Plan) -> dict[str, Placement]:
    """Return the placements of a plan by the location of their cases."""
    return {p.root: p for p in plan.placements}


def placed(plan: Plan, stage_to: str, images: Images, say: Say) -> Plan:
    """Return the plan with a place, not made yet, for every case whose data are put somewhere.

    Raises DatasetError where a placement has no place.
    """
    found: dict[tuple[str, ...], Placement] = {}
    for case in plan.cases:
        key = _key(case)
        if key and key not in found:
            found[key] = _place(plan.dataset, key, stage_to, images, say)
    if not found:
        return plan

    def there(case: Case) -> Case:
        place = found.get(_key(case))
        return dataclasses.replace(case, location=place.root) if place else case

    return dataclasses.replace(
        plan,
        cases=tuple(there(c) for c in plan.cases),
        trials=tuple(dataclasses.replace(t, case=there(t.case)) for t in plan.trials),
        placements=tuple(found.values()),
    )


@contextmanager
def present(plan: Plan, images: Images, say: Say) -> Iterator[Plan]:
    """Make what the plan places; return the plan with what making it took; remove it afterwards.

    ``seconds`` stay those of the first time.  Raises DatasetError.
    """
    placed_folders.sweep(_parents(plan, images), say)
    for runtime in {case.runtime: runtime_of(case) for case in plan.cases}.values():
        if runtime.form():
            runtime.sweep(say)
    _check_memory(plan)
    with ExitStack() as undo:
        made = [undo.enter_context(_made(plan, p, images, say)) for p in plan.placements]
        yield dataclasses.replace(plan, placements=tuple(made))


def _placing(kind: str) -> Placing:
    placing: Placing = registry.load("placements", kind).make()
    return placing


def _key(case: Case) -> tuple[str, ...]:
    """Return what decides whether cases share a place: kind, form, image, data; () for none."""
    if (placing := _placing(case.placement)) is None:
        return ()
    shared_by = placing.shared_by(runtime_of(case).form(), case.image)
    return case.placement, *shared_by, case.folder


def _place(
    dataset: Dataset, key: tuple[str, ...], stage_to: str, images: Images, say: Say
) -> Placement:
    kind, form, base, _ = key
    name = f"{placed_folders.PREFIX}{dataset.digest[:8]}-{secrets.token_hex(4)}"
    place = Placement(kind=kind, root="", form=form, base=base)
    site = Site(dataset, form, _image(place, images), stage_to, say)
    return dataclasses.replace(place, root=_placing(kind).root(site, name))


def _image(place: Placement, images: Images) -> str:
    """Return the image that a place's data are put into, "" for none."""
    return images[place.base].forms[place.form] if place.base else ""


def _parents(plan: Plan, images: Images) -> set[Path]:
    """Return the folders in which a killed suite may have left a place."""
    trees = [use.forms["rootfs"] for use in images.values() if "rootfs" in use.forms]
    paths = map(Path, [*by_location(plan), plan.dataset.root, *trees])
    return {Path(probes.SHARED_MEMORY), *(p.parent for p in paths if p.is_absolute())}


def _content_of(plan: Plan, place: Placement) -> Content:
    return _content.of(plan.dataset, [c for c in plan.cases if c.location == place.root])


def _check_memory(plan: Plan) -> None:
    """Raise DatasetError where all copies in memory together take more than their share of it."""
    kinds = {p.kind for p in plan.placements if registry.load("placements", p.kind).in_memory}
    need = sum(_content_of(plan, p).nbytes for p in plan.placements if p.kind in kinds)
    if need > MEMORY_SHARE * LOCAL.memory_bytes():
        raise DatasetError(
            f"placement {', '.join(map(repr, sorted(kinds)))} needs {need / 1e9:.1f} GB of memory, "
            "over half of what this job has: take fewer samples, or placement 'staged'"
        )


@contextmanager
def _made(plan: Plan, place: Placement, images: Images, say: Say) -> Iterator[Placement]:
    what = f"placement {place.kind}" + (f" for {place.form}" if place.form else "")
    data = _content_of(plan, place)
    say(f"{what}: putting {data.nbytes / 1e6:,.1f} MB to {place.root}")
    placing = _placing(place.kind)
    with ExitStack() as undo:
        if Path(place.root).is_absolute():
            undo.enter_context(placed_folders.held(Path(place.root), what))
        data.check_space(placing.space(place), what)
        LOCAL.evict(data.files)
        begun = clock()
        made = undo.enter_context(placing.put(place, data, _image(place, images)))
        seconds = clock() - begun
        _first_pass(made)
        yield dataclasses.replace(
            made, seconds=place.seconds or seconds, bytes=data.nbytes,
            filesystem=made.filesystem or str(LOCAL.mount(Path(made.files)).get("fstype", "")),
        )  # fmt: skip


def _first_pass(place: Placement) -> None:
    """Read it once from cold: the first pass after writing is unlike others."""
    top = Path(place.files)
    if top.is_file() or not place.inside:
        files = [f for f in (top, *top.rglob("*")) if f.is_file() and f.name != locks.NAME]
        LOCAL.evict(files)
        LOCAL.warm(files)
