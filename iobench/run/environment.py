"""The software that a case's processes start from: which files of this host it consists of."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import iobench
from iobench.core import registry
from iobench.core.cases import Case
from iobench.core.errors import BackendUnavailable
from iobench.core.members import Installed
from iobench.core.protocols import ImageUse
from iobench.images import forms
from iobench.run import command

#: Prefixes that hold a whole system: of these, only the folders that Python imports from count.
SYSTEM = frozenset(map(Path, ("/", "/usr", "/usr/local")))
PACKAGE = Path(iobench.__file__).resolve().parent
_ASK = "import json, sys; print(json.dumps([sys.prefix, *filter(None, sys.path)]))"
_ASK_S = 60.0


class Software(NamedTuple):
    """``root``: the image, or the prefix of a Python environment; its mount stands for all."""

    root: Path
    files: list[Path]
    nbytes: int


def software(case: Case, images: Mapping[str, ImageUse]) -> Software:
    """Return the files of the software that a case's processes start from.

    With an image: the image as its runtime takes it (one file, a folder, the layers in an engine's
    store).  Without: the Python environment of the case's stack, its prefix and the folders on its
    path.  The runtime's own programs and the system's libraries do not count.  Raises ImageError,
    BackendUnavailable.
    """
    if form := registry.form_of(case):
        found = forms.paths(command.image_of(case, form, images), form)
    else:
        found = _of_python(registry.installed(registry.stack_of(case)))
    outermost = [p for p in found if not any(other in p.parents for other in found)]
    files = dict(_below(outermost))
    return Software(found[0], sorted(files), sum(files.values()))


def _of_python(stack: Installed) -> list[Path]:
    """Return the folders that an interpreter on this host imports from, its prefix first."""
    path = {"PYTHONPATH": os.pathsep.join(stack.python_path)}
    asked = subprocess.run(
        [stack.python, "-c", _ASK],
        env={**os.environ, **stack.env, **path},
        capture_output=True,
        timeout=_ASK_S,
        check=False,
    )
    if asked.returncode:
        words = asked.stderr.decode(errors="replace").strip()[-200:]
        raise BackendUnavailable(f"{stack.python} does not start: {words}")
    prefix, *folders = map(Path, json.loads(asked.stdout))
    every = (Path(stack.prefix or prefix), *map(_own, folders))
    return [p for p in every if p not in SYSTEM and p.exists()] or [Path(stack.python)]


def _own(folder: Path) -> Path:
    """Return the package alone for a clone of it on Python's path, which holds much besides."""
    package = folder / PACKAGE.name
    installed = folder.name in ("site-packages", "dist-packages")
    return package if not installed and package.resolve() == PACKAGE else folder


def _below(paths: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    """Yield the paths that are files and the regular files below the others, with their bytes."""
    for path in paths:
        if path.is_file():
            yield path.resolve(), path.stat().st_size
            continue
        for folder, _, names in os.walk(path):
            for name in names:
                one = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    found = one.lstat()
                    if stat.S_ISREG(found.st_mode):  # a link has no pages of its own
                        yield one, found.st_size
