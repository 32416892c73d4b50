"""A user's ImageFolder tree as a dataset: a seeded subset, copied or referenced, never written."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from iobench.core import dataset as datasets
from iobench.core import transforms
from iobench.core.cases import Dataset
from iobench.core.errors import DatasetError
from iobench.data import index
from iobench.data.make import Progress, claim
from iobench.host import files

OnCorrupt = Literal["skip", "fatal"]
Check = Literal["header", "decode"]


class Found(NamedTuple):
    """One file of the tree: its path relative to it, its class folder, and its key (the path
    without suffix; with it where two files differ in nothing else).
    """

    file: str
    folder: str
    key: str


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
    on_corrupt: OnCorrupt = "skip",
    check: Check = "header",
    progress: Progress | None = None,
) -> Dataset:
    """Make a dataset under ``out`` of at most ``max_samples`` JPEGs, ``max_bytes`` long, of a tree.

    ``tree`` is ``<tree>/<class>/**/*.jpg``.  The subset is drawn by ``seed`` from all files, the
    classes are those drawn, numbered in sorted order.  ``in_place`` references the user's files
    instead of copying them.  A file that is no whole RGB or grey JPEG is left out and listed in
    ``left_out.tsv``, or raises with ``on_corrupt="fatal"``.  ``check="decode"`` decodes every
    file, ``"header"`` looks at both ends and the header.

    A dataset that is there already is returned; a killed run starts again.  Raises DatasetError
    when the tree is none, holds no usable file, or does not fit.
    """
    tree, out = Path(tree).resolve(), Path(out).absolute()
    apart(tree, out.resolve())
    report = progress or (lambda done, total: None)
    identity = {"tree": str(tree), "samples": max_samples, "seed": seed}
    identity |= {"in_place": in_place, "on_corrupt": on_corrupt, "check": check}
    found, left_out = scan(tree)
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
        room, examined = max_bytes, 0
        for candidate, data, reason in _examined(tree, queue, check, on_corrupt):
            if len(drawn) == max_samples or len(data) > room:
                break
            examined += 1
            if reason:
                left_out.append((candidate.file, reason))
                continue
            room -= len(data)
            if not in_place:
                _copy(data, copies / f"{candidate.key}.jpg")
            drawn.append(_Drawn(candidate, len(data), datasets.sample_digest(data)))
            report(len(drawn), min(max_samples, len(found)))
        _list_left_out(out, left_out)
        if not drawn:
            raise DatasetError(
                f"no usable JPEG in {tree}: {len(left_out)} files left out, the first because: "
                f"{left_out[0][1] if left_out else 'max_bytes is too small'}"
            )
        return _declare(tree, out, identity, drawn, len(found) - examined)


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


def scan(tree: Path) -> tuple[list[Found], list[tuple[str, str]]]:
    """Return the files in the tree's class folders, sorted, and what cannot be one of them.

    Raises DatasetError when there is no folder, no class folder or no file.
    """
    try:
        entries = sorted(os.scandir(tree), key=lambda entry: entry.name)
    except OSError as error:
        raise DatasetError(
            f"cannot read {tree}: {error.strerror}; name a readable folder"
        ) from None
    folders = [entry.name for entry in entries if entry.is_dir() and entry.name[0] != "."]
    outside = [entry.name for entry in entries if not entry.is_dir()]
    left_out = [(name, "not in a class folder") for name in outside]
    found = []
    for folder in folders:
        for file in sorted(_walk(tree, folder)):
            if not os.path.isfile(tree / file):
                left_out.append((file, "no file (a broken link, a pipe or a device)"))
            elif any(character in file for character in "\t\n\r"):
                left_out.append((file, "a tab or a line end in its name"))
            else:
                found.append(Found(file, folder, os.path.splitext(file)[0]))
    if not found:
        raise DatasetError(
            f"{tree} is no ImageFolder tree: no files in <tree>/<class>/ ({len(outside)} files lie "
            "beside the class folders); name the folder that holds the class folders"
        )
    count = Counter(each.key for each in found)
    return [f._replace(key=f.file) if count[f.key] > 1 else f for f in found], left_out


def _walk(tree: Path, folder: str) -> Iterator[str]:
    """Yield the files below a class folder; links are followed, but not back to a parent."""
    for path, folders, names in os.walk(tree / folder, followlinks=True):
        here = os.path.realpath(path) + "/"
        folders[:] = [
            name
            for name in folders
            if not here.startswith(os.path.realpath(os.path.join(path, name)) + "/")
        ]
        relative = os.path.relpath(path, tree)
        yield from (f"{relative}/{name}" for name in names)


def _check_space(tree: Path, out: Path, candidates: list[Found], max_bytes: int) -> None:
    sizes = [os.stat(tree / each.file).st_size for each in candidates]
    need = min(sum(sizes), max_bytes) + 4096 * len(sizes)
    files.check_space(out, need, len(sizes), f"a copy of {len(sizes)} files of {tree}")


def _examined(
    tree: Path, queue: list[Found], check: Check, on_corrupt: OnCorrupt
) -> Iterator[tuple[Found, bytes, str]]:
    """Yield (file, its bytes, what is wrong with it); no bytes where something is."""
    for found in queue:
        try:
            data = (tree / found.file).read_bytes()
            reason = defect(data, check)
        except OSError as error:
            data, reason = b"", f"cannot be read: {error.strerror}"
        if reason and on_corrupt == "fatal":
            raise DatasetError(f"{tree}/{found.file}: {reason}; mend or remove it")
        yield found, b"" if reason else data, reason


def defect(data: bytes, check: Check = "header") -> str:
    """Return why the bytes are no whole RGB or grey JPEG file, "" when they are."""
    import simplejpeg

    if data[:2] != b"\xff\xd8":
        return f"not a JPEG (begins with {data[:4].hex() or 'nothing'})"
    if not data.rstrip(b"\0\r\n ").endswith(b"\xff\xd9"):
        return "cut short, or something follows the image (no end-of-image marker at its end)"
    try:
        _, _, colourspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        return f"header cannot be decoded: {error}"
    if colourspace in ("CMYK", "YCCK"):
        return f"{colourspace} colours, which not every loader decodes"
    if check == "decode":
        try:
            transforms.decode(data)
        except (DatasetError, ValueError) as error:
            return f"cannot be decoded: {error}"
    return ""


def _list_left_out(out: Path, left_out: list[tuple[str, str]]) -> None:
    if left_out:
        lines = (f"{json.dumps(file)}\t{' '.join(reason.split())}\n" for file, reason in left_out)
        (out / datasets.LEFT_OUT).write_text("".join(sorted(lines)))


def _declare(
    tree: Path, out: Path, identity: dict[str, Any], drawn: list[_Drawn], not_drawn: int
) -> Dataset:
    in_place = bool(identity["in_place"])
    drawn.sort(key=lambda each: (each.found.folder, each.found.key))
    folders = sorted({each.found.folder for each in drawn})
    label = {folder: number for number, folder in enumerate(folders)}
    rows = []
    for found, size, digest in drawn:
        file = found.file if in_place else f"{found.key}.jpg"
        rows.append(index.Row(found.key, label[found.folder], size, digest, file))
    return index.declare(
        out,
        rows,
        name=tree.name,
        seed=int(identity["seed"]),
        source=str(tree),
        jpeg_root=str(tree if in_place else out / "jpeg"),
        in_place=in_place,
        recipe={"identity": identity, "not_drawn": not_drawn},
    )
