"""Copies of stored forms whose files a filesystem spreads as a case asks for."""

from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iobench.backends.placements import _content
from iobench.core import dataset as datasets
from iobench.core.cases import SCHEMA, Case, Dataset
from iobench.core.errors import DatasetError
from iobench.core.striping import ALL, Striping, striping
from iobench.host import files
from iobench.host.striping import stripe, striping_of

#: Of a form's facts: what was asked for, and what its largest file has.
WANTED, FOUND = "striping", "striping_found"


def unstriped(case: Case) -> Case:
    """Return the case of the same form as its filesystem spreads it by itself."""
    return dataclasses.replace(case, striping={})


def refused(case: Case, root: Path) -> str:
    """Return why a case's files cannot be spread as it asks in the dataset's folder, "" if so.

    It is tried on an empty folder there, which is removed; for a copy that is there nothing is.
    """
    if not case.striping or (root / case.folder / datasets.FORM_MARKER).exists():
        return ""
    there = files.nearest(root.absolute())
    try:
        with tempfile.TemporaryDirectory(prefix=".iobench-striping-", dir=there) as folder:
            stripe(Path(folder), case.striping)
    except DatasetError as error:
        return str(error)
    return ""


def copy(dataset: Dataset, case: Case) -> Path:
    """Copy the form that a case reads into a folder with its striping; return the folder.

    A copy that is there is kept.  Raises DatasetError where the striping is not possible, there is
    no room, or the copy is of another layout.
    """
    base = unstriped(case)
    source = datasets.form_facts(dataset, base.folder)
    target = datasets.form_root(dataset, case.folder)
    if _there(dataset, case, source):
        return target
    with files.hold(Path(dataset.root)):
        if _there(dataset, case, source):  # made meanwhile
            return target
        work = target.with_name(f"{target.name}.partial")
        for leftover in (work, target):
            if leftover.exists():
                shutil.rmtree(leftover)
        content = _content.of(dataset, [base])
        content.check_space(Path(dataset.root), f"a copy of {base.folder} with its striping")
        work.mkdir()
        content.copy_to(work, functools.partial(stripe, options=case.striping))
        made = work / base.folder
        (made / datasets.FORM_MARKER).unlink(missing_ok=True)
        largest = max((f for f in made.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
        facts = {
            "schema": SCHEMA,
            "samples": dataset.samples,
            "digest": dataset.digest,
            **source,
            WANTED: dict(case.striping),
            FOUND: dataclasses.asdict(striping_of(largest)),
        }
        files.settle(work)
        os.rename(made, target)
        shutil.rmtree(work)
        files.write_json(target / datasets.FORM_MARKER, facts)
    return target


def _there(dataset: Dataset, case: Case, source: Mapping[str, Any]) -> bool:
    """Return whether the copy is there.  Raises DatasetError where it is of another layout."""
    if not datasets.has_form(dataset, case.folder):
        return False
    there = datasets.form_facts(dataset, case.folder)
    if there["options"] == source["options"]:
        return True
    raise DatasetError(
        f"{datasets.form_root(dataset, case.folder)} is a copy of a form with options "
        f"{there['options']}, the form has {source['options']}: delete that folder"
    )


def notes(cases: Sequence[Case], dataset: Dataset) -> list[str]:
    """Return which copies have files that are not spread as was asked for."""
    found = []
    for form in dict.fromkeys(case.folder for case in cases if case.striping):
        if not datasets.has_form(dataset, form):
            continue
        facts = datasets.form_facts(dataset, form)
        wanted, has = striping(**facts[WANTED]), Striping(**facts[FOUND])
        if wanted.count != ALL and not wanted.met_by(has):
            found.append(f"{form}: asked for were {wanted}, and its largest file has {has}")
    return found
