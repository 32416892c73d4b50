"""What became of every file of a user's tree: counted once, kept with the dataset.

``dataset.json`` has the counts (``recipe.files``), ``files.tsv`` beside it names each file that was
left out, or used in a way worth knowing.  The run, the report and ``iobench data info`` say what
:func:`line` and :func:`table` return.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from iobench.core.cases import Dataset
from iobench.core.dataset import FILES

#: Key of the counts in ``Dataset.recipe``.
KEY = "files"


class Kind(NamedTuple):
    """Why a file was left out, or what is to know of one that is used; and what to do."""

    words: str
    remedy: str = ""


_CONVERT = "convert it to an 8-bit RGB JPEG"
#: Reasons to leave a file out.
LEFT_OUT: Mapping[str, Kind] = {
    "outside": Kind("beside the class folders", "move it into a class folder"),
    "hidden": Kind("hidden folder, not looked into", "rename a class whose name begins with a dot"),
    "closed": Kind("folder that cannot be read", "get the right to read it: chmod -R u+rX"),
    "loop": Kind("link back to a folder above it", "none: its files are found without it"),
    "links": Kind("folder that many links lead to", "link to each folder once"),
    "absent": Kind("link that leads nowhere", "restore its target"),
    "special": Kind("pipe, socket or device", "none: it holds no picture"),
    "name": Kind("tab or line end in its name", "rename it: an index has one line a file"),
    "unreadable": Kind("cannot be read", "get the right to read it, or restore it"),
    "empty": Kind("empty file", "restore it"),
    "other": Kind("not a JPEG", _CONVERT),
    "header": Kind("damaged header", "restore it"),
    "coding": Kind("lossless, arithmetic or hierarchical coding", _CONVERT),
    "depth": Kind("not 8 bits a value", _CONVERT),
    "cmyk": Kind("CMYK or YCCK colours", f"{_CONVERT}: every decoder makes other RGB of it"),
    "channels": Kind("neither grey nor three colours", _CONVERT),
    "size": Kind("more pixels than decoders take", "make it smaller"),
    "cut": Kind("cut short or damaged", "restore it"),
}
#: What is to know of files that are used.
NOTED: Mapping[str, Kind] = {
    "linked": Kind("found through a symbolic link"),
    "beyond": Kind("found through a link that leads out of the tree"),
    "again": Kind("the same file as another that is used", "remove one of the two names"),
    "turned": Kind("with an EXIF orientation, trained as stored: not turned"),
}


class FileNote(NamedTuple):
    """One file of the tree, by its path below it; ``detail``: more than its kind says."""

    file: str
    kind: str
    detail: str = ""

    @property
    def reason(self) -> str:
        """Why it was left out or what is to know of it, in words."""
        words = {**LEFT_OUT, **NOTED}[self.kind].words
        return f"{words} ({self.detail})" if self.detail else words


class TableLine(NamedTuple):
    """One line of the table: a state, how many files are in it, and what to do about them."""

    state: str
    files: int
    remedy: str = ""


@dataclasses.dataclass(frozen=True)
class Accounting:
    """How many files: ``found`` = ``used`` + ``not_drawn`` + those of ``left_out``, by kind.

    A folder that was not entered counts as one.  ``noted``: by kind, among those used.
    """

    found: int
    used: int
    not_drawn: int
    left_out: Mapping[str, int]
    noted: Mapping[str, int]


def count(rows: Iterable[FileNote], *, used: int, not_drawn: int) -> Accounting:
    """Return the accounting of rows, one for each file left out and each thing to know."""
    kinds = Counter(row.kind for row in rows)
    left_out = {kind: kinds[kind] for kind in LEFT_OUT if kinds[kind]}
    noted = {kind: kinds[kind] for kind in NOTED if kinds[kind]}
    found = used + not_drawn + sum(left_out.values())
    return Accounting(found, used, not_drawn, left_out, noted)


def of(dataset: Dataset) -> Accounting | None:
    """Return the accounting of a dataset; None of one that was not made from a user's tree."""
    counts = dataset.recipe.get(KEY)
    return Accounting(**counts) if counts else None


def write(root: Path, rows: Iterable[FileNote]) -> None:
    """Write ``files.tsv``: kind, detail and file of each row (the file as a JSON string)."""
    lines = (
        f"{row.kind}\t{' '.join(row.detail.split())}\t{json.dumps(row.file)}\n" for row in rows
    )
    (root / FILES).write_text("".join(sorted(lines)))


def read(dataset: Dataset) -> list[FileNote]:
    """Return the rows of ``files.tsv``; none where the dataset has no such file."""
    path = Path(dataset.root, FILES)
    if not path.exists():
        return []
    rows = (line.split("\t") for line in path.read_text().split("\n") if line)
    return [FileNote(json.loads(file), kind, detail) for kind, detail, file in rows]


def line(found: Accounting, source: str, root: str) -> str:
    """Return one line of counts for the run's output and the terminal.

    ``source``: the user's tree.  ``root``: the dataset that was made from it.
    """
    left_out = sum(found.left_out.values())
    parts = [f"files of {source}: {found.used:,} of {found.found:,} used"]
    if found.not_drawn:
        parts.append(f"{found.not_drawn:,} not drawn")
    if left_out:
        why = ", ".join(f"{n:,} {LEFT_OUT[kind].words}" for kind, n in _largest(found.left_out))
        parts.append(f"{left_out:,} left out ({why})")
    parts += [f"{n:,} {NOTED[kind].words}" for kind, n in found.noted.items()]
    return f"{'; '.join(parts)}; all of them: `iobench data info {root}`"


def _largest(counts: Mapping[str, int], most: int = 3) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])[:most]


def table(found: Accounting) -> list[TableLine]:
    """Return the accounting line by line, for people; the first two are all files and used ones."""
    lines = [TableLine("found in the tree", found.found), TableLine("used", found.used)]
    for kind, files in found.noted.items():
        lines.append(TableLine(f"used, {NOTED[kind].words}", files, NOTED[kind].remedy))
    if found.not_drawn:
        lines.append(TableLine("not drawn, not looked at", found.not_drawn, "ask for more samples"))
    for kind, files in found.left_out.items():
        lines.append(TableLine(f"left out: {LEFT_OUT[kind].words}", files, LEFT_OUT[kind].remedy))
    return lines


def to_json(found: Accounting) -> dict[str, Any]:
    """Return the counts as plain JSON types."""
    return dataclasses.asdict(found)
