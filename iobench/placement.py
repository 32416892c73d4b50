"""Where a case's data lies: on the mount under test, or on a copy made before the first trial.

``bind`` is the dataset where it is.  ``tmpfs`` is a copy in memory, ``staged`` a copy in a folder
that the spec names (``stage_to``: node-local disk, burst buffer).  A copy takes the forms that the
cases read and nothing else, is timed from a cold source until it is on the device, and is removed
at the end of the suite.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from iobench import dataset as datasets
from iobench import pagecache, registry
from iobench.errors import DatasetError
from iobench.model import Case, Dataset, Placement, Plan
from iobench.mounts import describe_mount, same_mount
from iobench.timing import clock

#: Placements that are copies; their filesystem is detected where the copy lies.
COPIED = ("tmpfs", "staged")
MEMORY = Path("/dev/shm")
#: Share of the effective memory that a copy may take: the trials need the rest.
MEMORY_SHARE = 0.5

Say = Callable[[str], None]


def dataset_of(dataset: Dataset, case: Case) -> Dataset:
    """Return the dataset as the case reads it: the original, or its copy at ``case.location``."""
    if case.placement not in COPIED:
        return dataset
    return _at(dataset, Path(case.location))


def placed(plan: Plan, stage_to: str, say: Say) -> Plan:
    """Copy what the cases of each copied placement read; return the plan with them there.

    Raises DatasetError when a copy does not fit, or nobody said where to stage.
    """
    copies: dict[str, Placement] = {}
    for kind in COPIED:
        cases = [c for c in plan.cases if c.placement == kind]
        if cases:
            copies[kind] = _copy(plan.dataset, kind, cases, stage_to, say)
    if not copies:
        return plan

    def there(case: Case) -> Case:
        copy = copies.get(case.placement)
        return dataclasses.replace(case, location=copy.root) if copy else case

    return dataclasses.replace(
        plan,
        cases=tuple(there(c) for c in plan.cases),
        trials=tuple(dataclasses.replace(t, case=there(t.case)) for t in plan.trials),
        placements=tuple(copies.values()),
    )


@contextmanager
def present(plan: Plan, say: Say) -> Iterator[None]:
    """Keep the copies for as long as the suite runs: make one again that is gone, remove all after.

    A resumed suite makes its copies anew, at the same place.
    """
    try:
        for copy in plan.placements:
            root = Path(copy.root)
            if not (root / datasets.MARKER).exists():
                cases = [c for c in plan.cases if c.placement == copy.kind]
                _fill(plan.dataset, root, _forms(cases), f"copying to {root} again", say)
        yield
    finally:
        for copy in plan.placements:
            shutil.rmtree(copy.root, ignore_errors=True)


def _copy(dataset: Dataset, kind: str, cases: Sequence[Case], stage_to: str, say: Say) -> Placement:
    parent = MEMORY if kind == "tmpfs" else _stage_folder(dataset, stage_to, say)
    name = f"iobench-{os.getuid()}-{dataset.name}-{dataset.digest[:8]}-"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        root = Path(tempfile.mkdtemp(prefix=name, dir=parent))
    except OSError as error:
        raise DatasetError(
            f"placement {kind!r}: cannot write to {parent}: {error.strerror}; choose another folder"
        ) from error
    forms = _forms(cases)
    files = _files(dataset, forms)
    size = sum(f.stat().st_size for f in files)
    try:
        datasets.check_space(parent, size, len(files), f"placement {kind!r}")
        if kind == "tmpfs" and size > MEMORY_SHARE * pagecache.effective_memory_bytes():
            raise DatasetError(
                f"placement 'tmpfs' needs {size / 1e9:.1f} GB of memory, over half of what this "
                "job has: take fewer samples, or placement 'staged'"
            )
        pagecache.evict(files)
        seconds = _fill(dataset, root, forms, f"placement {kind}: copying to {root}", say)
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise
    return Placement(
        kind=kind,
        root=str(root),
        seconds=seconds,
        bytes=size,
        filesystem=str(describe_mount(root).get("fstype", "")),
    )


def _stage_folder(dataset: Dataset, stage_to: str, say: Say) -> Path:
    if not stage_to:
        raise DatasetError(
            "placement 'staged' needs a folder to copy to: set stage_to in the spec, "
            'such as stage_to = "/local/scratch"'
        )
    folder = Path(stage_to)
    there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if same_mount(there, Path(dataset.root)):
        say(f"note: stage_to = {stage_to} is on the same mount as the data: staging gains nothing")
    return folder


def _fill(dataset: Dataset, root: Path, forms: Sequence[str], what: str, say: Say) -> float:
    """Copy the forms, the index and last the marker; return seconds until all of it is settled."""
    say(what)
    begun = clock()
    root.mkdir(parents=True, exist_ok=True)
    shutil.copy2(Path(dataset.root, datasets.INDEX), root)
    for form in forms:
        shutil.copytree(
            datasets.form_root(dataset, form), root / form, symlinks=False, dirs_exist_ok=True
        )
    datasets.finish(_at(dataset, root))
    return clock() - begun


def _at(dataset: Dataset, root: Path) -> Dataset:
    return dataclasses.replace(
        dataset, root=str(root), jpeg_root=str(root / "jpeg"), in_place=False
    )


def _forms(cases: Sequence[Case]) -> list[str]:
    return sorted({c.stored_form for c in cases if not registry.load("formats", c.format).fileless})


def _files(dataset: Dataset, forms: Sequence[str]) -> list[Path]:
    roots = [datasets.form_root(dataset, form) for form in forms]
    return [f for root in roots for f in root.rglob("*") if f.is_file()]
