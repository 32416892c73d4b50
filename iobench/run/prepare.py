"""Before the first trial: the dataset on the mount under test, in every form the cases read."""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from iobench.core import dataset as datasets
from iobench.core import registry
from iobench.core.cases import Case, Dataset
from iobench.core.errors import DatasetError, SpecError
from iobench.core.protocols import Say
from iobench.data import accounting, make, striped
from iobench.data.adopt import adopt, apart
from iobench.data.convert import convert
from iobench.host import files
from iobench.host.agent import LOCAL
from iobench.spec import data_rules
from iobench.spec.schema import DatasetSpec

#: (what is being done, done, total)
Progress = Callable[[str, int, int], None]
#: Share of the free space that copies may take.
SPACE_SHARE = 0.8
#: What else the cases may need beside the copy, at worst.
OTHER_FORMS = 3


def dataset_for(
    wanted: DatasetSpec,
    *,
    data: Path | None,
    out: Path,
    in_place: bool,
    say: Say,
    progress: Progress,
) -> Dataset:
    """Return the dataset to measure on.

    ``data`` None: the spec's recipe, made under ``out/data``.  A folder with ``dataset.json``: that
    dataset as it is.  Any other folder: a user's ImageFolder tree; a seeded subset of it is copied
    under ``out/data`` (``in_place``: its files are read where they are, never written).

    Raises DatasetError when it is missing, unusable or does not fit.
    """
    root = place_of(wanted, data, out)
    if data is None:
        say(f"dataset: {wanted.samples} samples of recipe {wanted.recipe!r} in {root}")
        return make.make(
            wanted.recipe,
            root,
            samples=wanted.samples,
            seed=wanted.seed,
            sizes=(wanted.mean_bytes, wanted.sd_bytes),
            progress=functools.partial(progress, "making samples"),
        )
    if root == data:
        found = datasets.locate(data)
        say(f"dataset: {found.samples} samples of {found.source} in {data}")
        return _accounted(found, say)
    return _accounted(_users(wanted, data, root, in_place, say, progress), say)


def place_of(wanted: DatasetSpec, data: Path | None, out: Path) -> Path:
    """Return the folder of the dataset to measure on, made or not: see :func:`dataset_for`.

    Raises DatasetError where the user's own folder is none, or lies in the other.
    """
    if data is None:
        sizes = f"-{wanted.mean_bytes}-{wanted.sd_bytes}" if wanted.mean_bytes else ""
        stem = Path(wanted.recipe).stem
        return out / "data" / f"{stem}{sizes}-{wanted.samples}-s{wanted.seed}"
    if (data / datasets.MARKER).exists():
        return data
    if not data.is_dir():
        raise DatasetError(
            f"{data} is not a folder; --data takes an ImageFolder tree (<tree>/<class>/*.jpg) or a "
            "folder made by `iobench data make`"
        )
    root = out / "data" / f"{data.resolve().name}-{wanted.samples}-s{wanted.seed}"
    apart(data.resolve(), root.resolve())
    return root


def foreseen(planned: Dataset, root: Path, say: Say) -> Dataset:
    """Return the dataset in ``root``; where none is made yet, ``planned`` as if it were there."""
    if (root / datasets.MARKER).exists():
        found = datasets.locate(root)
        say(f"dataset: {found.samples} samples of {found.source} in {root}")
        return found
    say(f"dataset: {planned.samples} samples, to be made in {root} (`iobench data prepare`)")
    return dataclasses.replace(planned, root=str(root), jpeg_root=str(root / "jpeg"))


def _accounted(found: Dataset, say: Say) -> Dataset:
    """Say what became of the files of a user's tree."""
    if counted := accounting.of(found):
        say(accounting.line(counted, found.source, found.root))
    return found


def _users(
    wanted: DatasetSpec, data: Path, root: Path, in_place: bool, say: Say, progress: Progress
) -> Dataset:
    root.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root.parent).free
    room = int(free * SPACE_SHARE) // (1 + OTHER_FORMS)
    say(
        f"dataset: up to {wanted.samples} samples of {data} (seed {wanted.seed}), at most "
        f"{room / 1e9:.1f} GB, {'read in place' if in_place else f'copied to {root}'}"
    )
    if not LOCAL.same_mount(data, root.parent):
        say(f"note: {_apart(data, root.parent, in_place)}")
    return adopt(
        data,
        root,
        max_samples=wanted.samples,
        max_bytes=room,
        seed=wanted.seed,
        in_place=in_place,
        progress=functools.partial(progress, "copying samples"),
    )


def _apart(data: Path, out: Path, in_place: bool) -> str:
    """Return which mounts are measured where the user's tree and its copies are on two."""
    here = LOCAL.stack(out)
    if in_place:
        return (
            f"JPEG files are read from {LOCAL.stack(data)}; other forms are made, and read, on "
            f"{here}: figures of both are of two filesystems"
        )
    return (
        f"{data} and {out} are on different mounts; what is measured is {here}: set OUT= (--out) "
        "to a folder beside the data to measure that filesystem"
    )


def spreadable(cases: Sequence[Case], root: Path, say: Say) -> list[Case]:
    """Return the cases whose striping is possible in the dataset's folder; say of the others why.

    Raises DatasetError where none is left.
    """
    why = [striped.refused(case, root) for case in cases]
    for case, reason in zip(cases, why, strict=True):
        if reason and all(why):
            raise DatasetError(reason)
        if reason:
            say(f"note: {case.label}: left out: {reason}")
    return [case for case, reason in zip(cases, why, strict=True) if not reason]


def ready(cases: Sequence[Case], dataset: Dataset, progress: Progress) -> None:
    """Check that the dataset serves the cases, and convert it to the forms that they read.

    Raises SpecError or DatasetError for what cannot be run on it.
    """
    data_rules.check(cases, data_rules.looked_at(cases, dataset))
    check_turned(cases, dataset)
    forms(cases, dataset, progress)
    check_forms(cases, dataset)


def notes(cases: Sequence[Case], dataset: Dataset, results: Path) -> list[str]:
    """Return what every reader of this suite's figures should know of where it ran."""
    out = []
    read = dict.fromkeys(_folder(case, dataset) for case in cases)
    written = files.nearest(results.absolute())
    if same := next((folder for folder in read if LOCAL.same_mount(written, folder)), None):
        where = LOCAL.stack(same)
        out.append(f"results are written to a filesystem under test ({where}), between trials")
    out += [
        f"{daemons} may keep data in memory, where nobody can look: cold is not proven"
        for daemons in dict.fromkeys(filter(None, map(LOCAL.unseen, read)))
    ]
    out += striped.notes(cases, dataset)
    mount = LOCAL.mount(files.nearest(Path(dataset.root).absolute()))
    ahead = 1024 * int(mount.get("read_ahead_kb") or 0)
    for form in _converted([c for c in cases if not registry.load("formats", c.format).per_file]):
        stored = [f for f in datasets.form_root(dataset, form).rglob("*") if f.is_file()]
        largest = max((f.stat().st_size for f in stored), default=0)
        if ahead and 0 < largest < 64 * ahead:
            out.append(
                f"{form}: its largest file ({largest >> 20} MiB) is under 64 times the device's "
                f"read-ahead ({ahead >> 20} MiB), so cold random reads are partly sequential"
            )
    return out


def never_cold(cases: Sequence[Case], dataset: Dataset) -> str:
    """Return why files that a case reads where they are cannot be cold, "" where all can."""
    folders = dict.fromkeys(_folder(case, dataset) for case in cases)
    return next(filter(None, map(LOCAL.cold, folders)), "")


def _folder(case: Case, dataset: Dataset) -> Path:
    """Return the folder that a case reads its samples from, or the nearest one above it."""
    return files.nearest(datasets.form_root(dataset, case.folder).absolute())


def _converted(cases: Sequence[Case]) -> list[str]:
    return sorted({c.folder for c in cases} - {"jpeg"})


def check_turned(cases: Sequence[Case], dataset: Dataset) -> None:
    """Raise SpecError for a case whose loader would turn pictures that others do not turn.

    Pixels that are stored are upright.
    """
    counted = accounting.of(dataset)
    turned = counted.noted.get("turned", 0) if counted and dataset.in_place else 0
    for case in cases:
        loader = registry.load("loaders", case.loader)
        if turned and loader.turns and case.content == "jpeg":
            raise SpecError(
                f"case {case.label}: {turned} pictures have an EXIF orientation, and "
                f"{loader.turns}: leave --in-place out (copies are made upright), or use another "
                "loader"
            )


def check_forms(cases: Sequence[Case], dataset: Dataset) -> None:
    """Raise DatasetError when a form's files are not the bytes that were written.

    Reading a file that was cut short through a memory map would kill the worker.
    """
    for form in _converted(cases):
        if not datasets.has_form(dataset, form):
            continue
        facts = datasets.form_facts(dataset, form)
        files = registry.load("formats", facts["format"]).make().files
        root = datasets.form_root(dataset, form)
        found = sum(f.stat().st_size for f in files(dataset, root) if f.is_file())
        if found != facts["bytes"]:
            raise DatasetError(
                f"{root} has {found:,} bytes, {facts['bytes']:,} were written: it is damaged; "
                "delete that folder, iobench converts again"
            )


def forms(cases: Sequence[Case], dataset: Dataset, progress: Progress) -> None:
    """Convert the dataset to every stored form that the cases read and it does not have yet.

    Raises DatasetError when a form has another layout than a case's options ask for.
    """
    done: set[object] = set()
    for case in map(striped.unstriped, cases):
        form, options = case.folder, dict(case.format_options)
        wanted = form, repr(sorted(options.items()))
        fileless = registry.load("formats", case.format).fileless
        if fileless or form == "jpeg" or wanted in done:
            continue
        done.add(wanted)
        if not options and datasets.has_form(dataset, form):
            continue  # whatever its layout
        convert(
            dataset,
            case.format,
            content=case.content,
            options=options,
            progress=functools.partial(progress, f"converting to {form}"),
        )
    for case in cases:
        if case.striping and case.folder not in done:
            done.add(case.folder)
            progress(f"copying to {case.folder}", 0, 1)
            striped.copy(dataset, case)
            progress(f"copying to {case.folder}", 1, 1)
