"""Where a case's data lies: on the mount under test, or put somewhere before the first trial.

``bind`` is the dataset where it is.  ``tmpfs`` is a copy in memory, ``staged`` a copy in a folder
that the spec names (``stage_to``: node-local disk, burst buffer).  ``image`` is the data inside
the image that the runtime runs, ``overlay`` a filesystem image laid over it.

Each stored form has a place of its own, so that what it took is what a pipeline pays.  A place
holds that form and the index, is timed from a cold source until it is on the device, and is removed
at the end of the suite; what a killed suite left is removed by the next one.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from iobench import pagecache
from iobench.errors import DatasetError
from iobench.model import Case, Dataset, Placement, Plan
from iobench.mounts import describe_mount, same_mount
from iobench.placements import content, engines, folders, squash
from iobench.placements.content import Content
from iobench.protocols import Say
from iobench.starting import ImageUse, runtime_of
from iobench.timing import clock

#: Placements that are copies; their filesystem is detected where the copy lies.
COPIED = ("tmpfs", "staged")
MEMORY = Path("/dev/shm")
#: Share of the effective memory that a copy may take: the trials need the rest.
MEMORY_SHARE = 0.5

Images = Mapping[str, ImageUse]


def dataset_of(dataset: Dataset, placement: Placement | None) -> Dataset:
    """Return the dataset as it lies on this host: the original, or what was put somewhere."""
    if placement is None or not placement.files:
        return dataset
    files = Path(placement.files)
    return content.at(dataset, files.parent if files.is_file() else files)


def by_location(plan: Plan) -> dict[str, Placement]:
    """Return the placements of a plan by the location of their cases."""
    return {p.root: p for p in plan.placements}


def placed(plan: Plan, stage_to: str, images: Images, say: Say) -> Plan:
    """Return the plan with a place for every placement but ``bind``; nothing is made yet.

    Raises DatasetError where nobody said where to stage.
    """
    found: dict[tuple[str, ...], Placement] = {}
    for case in plan.cases:
        if case.placement != "bind" and _key(case) not in found:
            found[_key(case)] = _place(plan.dataset, case, stage_to, images, say)
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

    A resumed suite makes it anew, at the same place; ``seconds`` stay those of the first time.
    Leftovers of suites that were killed are removed first.  Raises DatasetError.
    """
    folders.sweep({MEMORY, *_parents(plan, images)}, say)
    for form in sorted({runtime_of(c).form() for c in plan.cases} & {*engines.FORMS}):
        engines.sweep(form, say)
    _check_memory(plan)
    with ExitStack() as undo:
        made = [undo.enter_context(_made(plan, p, images, say)) for p in plan.placements]
        yield dataclasses.replace(plan, placements=tuple(made))


def _key(case: Case) -> tuple[str, str, str, str]:
    """Return what decides whether two cases share what is put somewhere: kind, form, base, data."""
    data = case.stored_form
    if case.placement in ("bind", *COPIED):
        return case.placement, "", "", data
    form = runtime_of(case).form()
    if case.placement == "overlay" or form == "sif":
        return case.placement, "sif", "", data  # a filesystem image, whatever it is shown in
    return case.placement, form, case.image, data


def _place(dataset: Dataset, case: Case, stage_to: str, images: Images, say: Say) -> Placement:
    kind, form, base, _ = _key(case)
    name = f"{folders.PREFIX}{dataset.digest[:8]}-{secrets.token_hex(4)}"
    place = Placement(kind=kind, root="", form=form, base=base)
    if form in engines.FORMS:
        return dataclasses.replace(place, root=engines.tag(name))
    if kind == "tmpfs":
        parent = MEMORY
    elif kind == "staged":
        parent = _stage_folder(dataset, stage_to, say)
    elif form == "rootfs":
        parent = Path(images[base].forms[form]).parent  # hard links reach no other filesystem
    else:
        parent = Path(dataset.root).parent  # on the mount under test
    return dataclasses.replace(place, root=str(parent / name))


def _parents(plan: Plan, images: Images) -> set[Path]:
    roots = [p.root for p in plan.placements if p.form not in engines.FORMS]
    trees = [Path(use.forms["rootfs"]) for use in images.values() if "rootfs" in use.forms]
    return {p.parent for p in [*map(Path, roots), Path(plan.dataset.root), *trees]}


def _content(plan: Plan, place: Placement) -> Content:
    return content.of(plan.dataset, [c for c in plan.cases if c.location == place.root])


def _check_memory(plan: Plan) -> None:
    """Raise DatasetError where all copies in memory together take more than their share of it."""
    need = sum(_content(plan, p).nbytes for p in plan.placements if p.kind == "tmpfs")
    if need > MEMORY_SHARE * pagecache.effective_memory_bytes():
        raise DatasetError(
            f"placement 'tmpfs' needs {need / 1e9:.1f} GB of memory, over half of what this "
            "job has: take fewer samples, or placement 'staged'"
        )


@contextmanager
def _made(plan: Plan, place: Placement, images: Images, say: Say) -> Iterator[Placement]:
    what = f"placement {place.kind}"
    what += f" for {place.form}" if place.form else ""
    data = _content(plan, place)
    say(f"{what}: putting {data.nbytes / 1e6:,.1f} MB to {place.root}")
    with ExitStack() as undo:
        if place.form in engines.FORMS:
            space = engines.store(place.form)
        else:
            space = undo.enter_context(folders.held(Path(place.root), what)).parent
        data.check_space(space, what)
        pagecache.evict(data.files)
        begun = clock()
        made = undo.enter_context(_filled(place, data, images))
        seconds = clock() - begun
        _first_pass(made)
        yield dataclasses.replace(
            made, seconds=place.seconds or seconds, bytes=data.nbytes,
            filesystem=made.filesystem or str(describe_mount(Path(made.files)).get("fstype", "")),
        )  # fmt: skip


@contextmanager
def _filled(place: Placement, data: Content, images: Images) -> Iterator[Placement]:
    """Fill a place by its kind."""
    if place.form in engines.FORMS:
        base = images[place.base].forms[place.form]
        with engines.derived(place, base, data) as made:
            yield made
    elif place.form == "rootfs":
        yield folders.tree(place, Path(images[place.base].forms["rootfs"]), data)
    elif place.form == "sif":
        yield squash.packed(place, data)
    else:
        yield folders.copy(place, data)


def _first_pass(place: Placement) -> None:
    """Read it once from cold: the first pass after writing is unlike others."""
    top = Path(place.files)
    if top.is_file() or not place.inside:
        files = [top] if top.is_file() else [f for f in top.rglob("*") if f.is_file()]
        pagecache.evict(files)
        pagecache.warm(files)


def _stage_folder(dataset: Dataset, stage_to: str, say: Say) -> Path:
    if not stage_to:
        raise DatasetError(
            "placement 'staged' needs a folder to copy to: set stage_to in the spec, "
            'such as stage_to = "/local/scratch"'
        )
    folder = Path(stage_to).absolute()
    there = next(p for p in (folder, *folder.parents) if p.exists())
    if same_mount(there, Path(dataset.root)):
        say(f"note: stage_to = {stage_to} is on the same mount as the data: staging gains nothing")
    return folder
