"""Finds every file of an ImageFolder tree, and accounts for what cannot be one of its pictures."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from iobench.core.errors import DatasetError
from iobench.data.accounting import FileNote

#: Times that one folder is entered, by links to it: where two links lead on from every folder, a
#: walk without end doubles with each.
MOST_VISITS = 8


class Found(NamedTuple):
    """One file of the tree: its path relative to it, its class folder, and its key (the path
    without suffix; with it where two files differ in nothing else).
    """

    file: str
    folder: str
    key: str


def scan(tree: Path) -> tuple[list[Found], list[FileNote]]:
    """Return the files in the tree's class folders, sorted, and what cannot be one of them.

    Links are followed.  Raises DatasetError when there is no folder, no class folder or no file.
    """
    try:
        entries = sorted(os.scandir(tree), key=lambda entry: entry.name)
    except OSError as error:
        raise DatasetError(
            f"cannot read {tree}: {error.strerror}; name a readable folder"
        ) from None
    found, left_out = [], []
    visits: Counter[tuple[int, int]] = Counter()
    for entry in entries:
        if not entry.is_dir():
            left_out.append(FileNote(entry.name, "outside"))
        elif entry.name.startswith("."):
            left_out.append(FileNote(entry.name, "hidden"))
        elif _above(os.path.realpath(entry.path), os.fspath(tree)):
            left_out.append(FileNote(entry.name, "loop"))
        else:
            for file in sorted(_walk(tree, entry.name, left_out, visits)):
                row = _unusable(tree, file)
                if row:
                    left_out.append(row)
                else:
                    found.append(Found(file, entry.name, os.path.splitext(file)[0]))
    if not found:
        beside = sum(row.kind == "outside" for row in left_out)
        closed = sum(row.kind == "closed" for row in left_out)
        raise DatasetError(
            f"{tree} is no ImageFolder tree: no files in <tree>/<class>/ ({beside} files lie "
            f"beside the class folders, {closed} folders cannot be read); name the folder that "
            "holds the class folders"
        )
    return _distinct(found), left_out


def _distinct(found: list[Found]) -> list[Found]:
    """Give files whose keys are equal their whole name as key, until no two keys are."""
    while True:
        count = Counter(each.key for each in found)
        changed = [f._replace(key=f.file) if count[f.key] > 1 else f for f in found]
        if changed == found:
            return found
        found = changed


def _above(folder: str, path: str) -> bool:
    """Return whether ``path`` is the folder or lies in it; both are resolved."""
    return f"{path}/".startswith(folder.rstrip("/") + "/")


def _walk(
    tree: Path, folder: str, left_out: list[FileNote], visits: Counter[tuple[int, int]]
) -> Iterator[str]:
    """Yield the files below a class folder; folders that are not entered join ``left_out``.

    ``visits``: how often each folder was entered, by whatever name.
    """

    def closed(error: OSError) -> None:
        path = os.path.relpath(os.fspath(error.filename), tree)
        left_out.append(FileNote(path, "closed", str(error.strerror)))

    for path, folders, names in os.walk(tree / folder, onerror=closed, followlinks=True):
        here = os.path.realpath(path)
        relative = os.path.relpath(path, tree)
        for name in list(folders):
            if kind := _not_entered(os.path.join(path, name), here, visits):
                folders.remove(name)
                left_out.append(FileNote(f"{relative}/{name}", kind))
        yield from (f"{relative}/{name}" for name in names)


def _not_entered(folder: str, here: str, visits: Counter[tuple[int, int]]) -> str:
    """Return why a folder found in ``here`` is not looked into; "" where it is, and counted."""
    if _above(os.path.realpath(folder), here):
        return "loop"
    try:
        facts = os.stat(folder)
    except OSError:
        return ""  # the walk says why
    visits[facts.st_dev, facts.st_ino] += 1
    return "links" if visits[facts.st_dev, facts.st_ino] > MOST_VISITS else ""


def _unusable(tree: Path, file: str) -> FileNote | None:
    """Return why a name cannot be a picture's, judged without opening it."""
    if any(character in file for character in "\t\n\r"):
        return FileNote(file, "name")
    try:
        mode = os.stat(tree / file).st_mode
    except OSError as error:
        kind = "absent" if os.path.islink(tree / file) else "unreadable"
        return FileNote(file, kind, str(error.strerror))
    return None if stat.S_ISREG(mode) else FileNote(file, "special")


def links(tree: Path, file: str) -> str:
    """Return ``linked`` for a file found through a link, ``beyond`` if that leads out of the tree.

    ``tree`` is resolved; "" for a file that lies where its path says.
    """
    real = os.path.realpath(tree / file)
    if real == f"{tree}/{file}":
        return ""
    return "linked" if real.startswith(f"{tree}/") else "beyond"
