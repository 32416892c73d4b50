"""A user's ImageFolder tree as a dataset: a seeded subset, copied or referenced, never written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from iobench.core import dataset as datasets
from iobench.core.cases import Dataset
from iobench.core.errors import DatasetError
from iobench.data import accounting, defects, index
from iobench.data.accounting import FileNote
from iobench.data.jpeg_header import orientations, upright
from iobench.data.make import Progress, claim
from iobench.data.tree import Found, links, scan
from iobench.host import files


class _Drawn(NamedTuple):
    found: Found
    size: int
    digest: str


def adopt(
    tree: Path,
    out: Path,
    *,
    max_samples: int,
    max_bytes: int,
    seed: int,
    in_place: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Make a dataset under ``out`` of at most ``max_samples`` JPEGs, ``max_bytes`` long, of a tree.

    ``tree`` is ``<tree>/<class>/**/*``.  The subset is drawn by ``seed`` from all files, the
    classes are those drawn, numbered in sorted order.  ``in_place`` references the user's files
    instead of copying them.  Every file is decoded once; one that not every loader reads as the
    same picture is left out.  What became of each file is kept with the dataset: see
    :mod:`iobench.data.accounting`.

    A copy's EXIF orientation is set to 1, so that no decoder turns it; nothing else is changed.  A
    dataset that is there already is returned; a killed run starts again.  Raises DatasetError
    when the tree is none, holds no usable file, or does not fit.
    """
    tree, out = Path(tree).resolve(), Path(out).absolute()
    apart(tree, out.resolve())
    report = progress or (lambda done, total: None)
    identity = {"tree": str(tree), "samples": max_samples, "seed": seed, "in_place": in_place}
    found, rows = scan(tree)
    with claim(out, identity) as finished:
        if finished is not None:
            return finished
        copies = out / "jpeg"
        if copies.exists():  # a killed run's, in a folder that is ours
            shutil.rmtree(copies)
        raw = np.random.PCG64(seed).random_raw(len(found))
        queue = [found[i] for i in np.argsort(raw, kind="stable")]
        if not in_place:
            _check_space(tree, out, queue[:max_samples], max_bytes)
        drawn: list[_Drawn] = []
        left, room = len(queue), max_bytes
        seen: set[tuple[int, int]] = set()
        for candidate, data, row in _examined(tree, queue):
            if len(drawn) == max_samples or len(data) > room:
                break
            left -= 1
            if row:
                rows.append(row)
                continue
            rows += _notes(tree, candidate.file, data, seen)
            if not in_place:
                data = upright(data)
                _copy(data, copies / candidate.file)
            room -= len(data)
            drawn.append(_Drawn(candidate, len(data), datasets.sample_digest(data)))
            report(len(drawn), min(max_samples, len(found)))
        accounting.write(out, rows)
        if not drawn:
            raise DatasetError(_nothing(tree, rows))
        return _declare(tree, out, identity, drawn, rows, left)


def _nothing(tree: Path, rows: list[FileNote]) -> str:
    left_out = [row for row in rows if row.kind in accounting.LEFT_OUT]
    why = left_out[0].reason if left_out else "max_bytes is too small"
    return f"no usable JPEG in {tree}: {len(left_out)} files left out, the first because: {why}"


def _copy(data: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def apart(tree: Path, out: Path) -> None:
    """Raise DatasetError when one of the two (resolved) folders lies in the other."""
    if tree == out or tree in out.parents or out in tree.parents:
        raise DatasetError(
            f"{out} and {tree} lie in one another, and nothing is written into a "
            "tree: choose another --out"
        )


def _check_space(tree: Path, out: Path, candidates: list[Found], max_bytes: int) -> None:
    sizes = [os.stat(tree / each.file).st_size for each in candidates]
    need = min(sum(sizes), max_bytes) + 4096 * len(sizes)
    files.check_space(out, need, len(sizes), f"a copy of {len(sizes)} files of {tree}")


def _examined(tree: Path, queue: list[Found]) -> Iterator[tuple[Found, bytes, FileNote | None]]:
    """Yield (file, its bytes, why it is left out); no bytes where it is."""
    for found in queue:
        try:
            data = defects.read(tree / found.file)
            reason = defects.defect(data)
        except OSError as error:
            reason = defects.Defect("unreadable", str(error.strerror))
        except DatasetError as error:
            reason = defects.Defect("size", str(error))
        if reason is None:
            yield found, data, None
        else:
            yield found, b"", FileNote(found.file, *reason)


def _notes(tree: Path, file: str, data: bytes, seen: set[tuple[int, int]]) -> Iterator[FileNote]:
    """Yield what is to know of a file that is used; ``seen``: the files of those before it."""
    kind = links(tree, file)
    if kind:
        yield FileNote(file, kind, os.path.realpath(tree / file))
    status = os.stat(tree / file)
    if (status.st_dev, status.st_ino) in seen:
        yield FileNote(file, "again")
    seen.add((status.st_dev, status.st_ino))
    values = sorted({tag.value for tag in orientations(data)} & set(range(2, 9)))
    if values:
        yield FileNote(file, "turned", f"orientation {', '.join(map(str, values))}")


def _declare(
    tree: Path,
    out: Path,
    identity: dict[str, Any],
    drawn: list[_Drawn],
    rows: list[FileNote],
    not_drawn: int,
) -> Dataset:
    in_place = bool(identity["in_place"])
    drawn.sort(key=lambda each: (each.found.folder, each.found.key))
    folders = sorted({each.found.folder for each in drawn})
    label = {folder: number for number, folder in enumerate(folders)}
    samples = []
    for found, size, digest in drawn:
        samples.append(index.Row(found.key, label[found.folder], size, digest, found.file))
    counted = accounting.count(rows, used=len(drawn), not_drawn=not_drawn)
    return index.declare(
        out,
        samples,
        name=tree.name,
        seed=int(identity["seed"]),
        source=str(tree),
        jpeg_root=str(tree if in_place else out / "jpeg"),
        in_place=in_place,
        recipe={
            "identity": identity,
            accounting.KEY: accounting.to_json(counted),
        },
    )
