"""Data inside a docker or podman image: one layer on top of the image that the runtime runs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, List

from iobench.backends.placements._content import Content
from iobench.core.cases import Placement
from iobench.core.errors import DatasetError
from iobench.core.inside import DATA_INSIDE
from iobench.host import engines
from iobench.host.probes import ask

FORMS = engines.FORMS
#: Storing a layer takes longer than a probe may.
_LIMIT_S = 3600.0


def tag(name: str) -> str:
    """Return the name of an image with data in it."""
    return f"localhost/{name.lower()}:latest"


def store(form: str) -> Path:
    """Return a folder on the filesystem where the engine keeps its images."""
    fields = {"docker": "{{.DockerRootDir}}", "podman": "{{.Store.GraphRoot}}"}
    path = Path(_ask(form, "info", "--format", fields[form]))
    return next((p for p in (path, *path.parents) if os.access(p, os.X_OK)), Path("/"))


@contextlib.contextmanager
def derived(place: Placement, base: str, data: Content) -> Iterator[Placement]:
    """Make the image; it and the container that it is made from are gone afterwards."""
    form, what = place.form, f"placement image for {place.form}"
    container = place.root.partition("/")[2].partition(":")[0]
    try:
        marks = [f"--label={engines.owner()}", f"--name={container}", "--network=none"]
        _ask(form, "create", *marks, base, "true")
        data.send([*_words(form), "cp", "-", f"{container}:/"], *_user(form), what)
        _ask(form, "commit", container, place.root)
        ask([*_words(form), "rm", "--force", container])
        os.sync()  # the engine's files are its own: all filesystems
        yield _described(place)
    finally:
        ask([*_words(form), "rm", "--force", container])
        ask([*_words(form), "rmi", "--force", place.root])


def _described(place: Placement) -> Placement:
    """Return the place with where its layer lies, as far as this user may look."""
    facts: dict[str, Any] = json.loads(_ask(place.form, "image", "inspect", place.root))[0]
    driver = facts.get("GraphDriver") or {}
    upper = str((driver.get("Data") or {}).get("UpperDir") or "")
    files = Path(upper + DATA_INSIDE) if upper else store(place.form)
    seen = bool(upper) and reachable(files)
    return dataclasses.replace(
        place, image=place.root, files=str(files), inside=not seen,
        filesystem=str(driver.get("Name") or "unknown"),
    )  # fmt: skip


def reachable(folder: Path) -> bool:
    """Return whether this user may look into a folder of the engine's store."""
    return os.access(folder, os.R_OK | os.X_OK)


def _user(form: str) -> tuple[int, int]:
    """Return who owns the data inside: whom the worker runs as (rootless: root inside)."""
    if os.geteuid() != 0 if form == "podman" else engines.docker_maps() == "rootless":
        return 0, 0
    return os.geteuid(), os.getegid()


def _words(form: str) -> List[str]:
    return ["docker"] if form == "docker" else engines.podman()


def _ask(form: str, *words: str) -> str:
    code, output = ask([*_words(form), *words], _LIMIT_S)
    if code:
        raise DatasetError(f"placement image: `{form} {words[0]}` failed: {output}")
    return output
