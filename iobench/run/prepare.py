"""Before the first trial: the dataset on the mount under test, in every form the cases read."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from iobench import dataset as datasets
from iobench import registry
from iobench.convert import convert
from iobench.errors import CacheStateError, DatasetError, SpecError
from iobench.model import Case, Dataset
from iobench.mounts import describe_mount, filesystem_for, same_mount
from iobench.protocols import Say
from iobench.spec import Spec, expand
from iobench.userdata import adopt, apart

#: (what is being done, done, total)
Progress = Callable[[str, int, int], None]
#: Share of the free space that copies may take.
SPACE_SHARE = 0.8


def dataset_for(
    spec: Spec,
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
    wanted = spec.dataset
    if data is None:
        name = f"{Path(wanted.recipe).stem}-{wanted.samples}-s{wanted.seed}"
        root = out / "data" / name
        say(f"dataset: {wanted.samples} samples of recipe {wanted.recipe!r} in {root}")
        return datasets.make(
            wanted.recipe,
            root,
            samples=wanted.samples,
            seed=wanted.seed,
            progress=lambda done, total: progress("making samples", done, total),
        )
    if (data / "dataset.json").exists():
        found = datasets.locate(data)
        say(f"dataset: {found.samples} samples of {found.source} in {data}")
        return found
    if not data.is_dir():
        raise DatasetError(
            f"{data} is no folder; --data takes an ImageFolder tree (<tree>/<class>/*.jpg) or a "
            "folder made by `iobench data make`"
        )
    return _users(spec, data, out, in_place, say, progress)


def _users(
    spec: Spec, data: Path, out: Path, in_place: bool, say: Say, progress: Progress
) -> Dataset:
    wanted = spec.dataset
    root = out / "data" / f"{data.resolve().name}-{wanted.samples}-s{wanted.seed}"
    apart(data.resolve(), root.resolve())  # before anything is made
    root.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root.parent).free
    forms = 3  # what else the cases may need beside the copy, at worst
    room = int(free * SPACE_SHARE) // (1 + forms)
    say(
        f"dataset: up to {wanted.samples} samples of {data} (seed {wanted.seed}), at most "
        f"{room / 1e9:.1f} GB, {'read in place' if in_place else f'copied to {root}'}"
    )
    if not same_mount(data, root.parent):
        mount = describe_mount(root.parent)
        say(
            f"note: {data} and {root.parent} are on different mounts; what is measured is "
            f"{mount.get('fstype')} at {mount.get('mount_point')}: set OUT= (--out) to a folder "
            "beside the data to measure that filesystem"
        )
    return adopt(
        data,
        root,
        max_samples=wanted.samples,
        max_bytes=room,
        seed=wanted.seed,
        in_place=in_place,
        check="decode",  # one file that no loader can decode would fail every trial
        progress=lambda done, total: progress("copying samples", done, total),
    )


def ready(
    spec: Spec, dataset: Dataset, results: Path, say: Say, progress: Progress
) -> tuple[Spec, list[str]]:
    """Check that the dataset serves the spec, convert it, and return what can be run, and notes.

    Raises SpecError, DatasetError or CacheStateError for what cannot be run on it.
    """
    cases = expand(spec)
    check_batches(cases, dataset)
    spec, refused = without_cold(spec, dataset)
    for note in refused:
        say(f"note: {note}")
    forms(cases, dataset, progress)
    check_forms(cases, dataset)
    return spec, [*refused, *notes(cases, dataset, results)]


def notes(cases: Sequence[Case], dataset: Dataset, results: Path) -> list[str]:
    """Return what every reader of this suite's figures should know of where it ran."""
    out = []
    mount = describe_mount(Path(dataset.root))
    where = f"{mount.get('fstype')} at {mount.get('mount_point')}"
    folder = next(p for p in (results.absolute(), *results.absolute().parents) if p.exists())
    if same_mount(folder, Path(dataset.root)):
        out.append(f"results are written to the filesystem under test ({where}), between trials")
    ahead = 1024 * int(mount.get("read_ahead_kb") or 0)
    for form in sorted({c.stored_form for c in cases if c.stored_form != "jpeg"}):
        files = [f for f in datasets.form_root(dataset, form).rglob("*") if f.is_file()]
        largest = max((f.stat().st_size for f in files), default=0)
        if ahead and 0 < largest < 64 * ahead:
            out.append(
                f"{form}: its largest file ({largest >> 20} MiB) is under 64 times the device's "
                f"read-ahead ({ahead >> 20} MiB), so cold random reads are partly sequential"
            )
    return out


def check_batches(cases: Sequence[Case], dataset: Dataset) -> None:
    """Raise SpecError for a case that cannot fill one batch: a trial would only find out later."""
    for case in cases:
        samples = min(case.samples or dataset.samples, dataset.samples) // case.world_size
        if samples < case.batch:
            raise SpecError(
                f"case {case.label}: {samples} samples a rank are no whole batch of {case.batch}; "
                f"use a smaller batch or more samples (the dataset has {dataset.samples})"
            )


def check_forms(cases: Sequence[Case], dataset: Dataset) -> None:
    """Raise DatasetError when a form's files are not the bytes that were written.

    Reading a file that was cut short through a memory map would kill the worker.
    """
    for form in sorted({c.stored_form for c in cases if c.stored_form != "jpeg"}):
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


def without_cold(spec: Spec, dataset: Dataset) -> tuple[Spec, list[str]]:
    """Return the spec less what its mount cannot give (cold and partly cached files), and why.

    Raises CacheStateError when nothing is left to run.
    """
    reason = filesystem_for(Path(dataset.root))[1].cold()
    if not reason:
        return spec, []
    if "warm" not in spec.ladder.caches:
        raise CacheStateError(f"the spec asks for no warm rung, and {reason}")

    def hot(stages: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return stages and tuple(s for s in stages if s != "ceiling")

    left = spec.model_copy(
        update={
            "ladder": spec.ladder.model_copy(
                update={"caches": ("warm",), "stages": hot(spec.ladder.stages)}
            ),
            "cases": tuple(c.model_copy(update={"stages": hot(c.stages)}) for c in spec.cases),
            "contrasts": tuple(
                c.model_copy(update={"caches": ("warm",)})
                for c in spec.contrasts
                if "warm" in c.caches
            ),
        }
    )
    if left.model_dump() == spec.model_dump():
        return spec, []
    return left, [f"no cold, cached-fraction and ceiling rungs: {reason}"]


def forms(cases: Sequence[Case], dataset: Dataset, progress: Progress) -> None:
    """Convert the dataset to every stored form that the cases read and it does not have yet.

    Raises DatasetError when a form is there, or is made for another case, with another layout than
    a case's options ask for.
    """
    done = set()
    for case in cases:
        form, options = case.stored_form, dict(case.format_options)
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
