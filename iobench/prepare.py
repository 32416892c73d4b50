"""Before the first trial: the dataset on the mount under test, in every form the cases read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from iobench import dataset as datasets
from iobench import registry
from iobench.convert import convert
from iobench.errors import DatasetError
from iobench.model import Case, Dataset
from iobench.mounts import describe_mount, same_mount
from iobench.spec import Spec
from iobench.userdata import adopt

#: (what is being done, done, total)
Progress = Callable[[str, int, int], None]
#: Told once, in words, before something long or surprising.
Say = Callable[[str], None]
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
        progress=lambda done, total: progress("copying samples", done, total),
    )


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
        if ahead and largest < 64 * ahead:
            out.append(
                f"{form}: its largest file ({largest >> 20} MiB) is under 64 times the device's "
                f"read-ahead ({ahead >> 20} MiB), so cold random reads are partly sequential"
            )
    return out


def forms(cases: Sequence[Case], dataset: Dataset, progress: Progress) -> None:
    """Convert the dataset to every stored form that the cases read and it does not have yet."""
    done: set[str] = set()
    for case in cases:
        form = case.stored_form
        fileless = registry.load("formats", case.format).fileless
        if fileless or form in done or datasets.has_form(dataset, form):
            continue
        done.add(form)
        convert(
            dataset,
            case.format,
            content=case.content,
            options=dict(case.format_options),
            progress=lambda i, n, form=form: progress(f"converting to {form}", i, n),
        )
