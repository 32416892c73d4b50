"""The images of a folder: ``<name>.json`` is written last, so what has one is whole."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import iobench.images.recipe as recipe
from iobench.core.errors import ImageError
from iobench.images.disk import partial
from iobench.images.model import DEFAULT_FOLDER, Image, names, recipe_of


def find(name: str, folder: Path = DEFAULT_FOLDER) -> Image:
    """Return a whole, current image.  Raises ImageError with the reason and the remedy."""
    image = recorded(name, folder)
    remedy = f"`iobench image build {name}`"
    here = recipe.architecture()
    if image.architecture != here:
        raise ImageError(
            f"{image.archive} is for {image.architecture} and this machine is {here}: build one "
            f"here ({remedy}) or bring one that was built on {here}"
        )
    current = recipe.digest(name)
    if image.recipe != current:
        raise ImageError(
            f"{image.archive} is stale: it was built from recipe {image.recipe} (iobench "
            f"{image.version}, {image.revision[:12]}), and this iobench's is {current}; {remedy} "
            "builds it anew"
        )
    return image


def recorded(name: str, folder: Path = DEFAULT_FOLDER) -> Image:
    """Return an image as it was recorded, current or not; ImageError where it is not whole."""
    recipe_of(name)
    path = folder / f"{name}.json"
    remedy = f"`iobench image build {name}` (or `make images`)"
    if not path.exists():
        half = (folder / f"{name}.tar").exists() or (folder / f".{name}.tar.partial").exists()
        state = "only half-built" if half else "not built"
        raise ImageError(f"image {name} is {state} in {folder}: {remedy}")
    image = _read(path, folder, remedy)
    if not image.archive.exists():
        raise ImageError(f"{image.archive} is gone: {remedy}")
    size = image.archive.stat().st_size
    if size != image.bytes:
        raise ImageError(
            f"{image.archive} has {size} bytes and was recorded with {image.bytes}: remove it and "
            f"{remedy}"
        )
    return image


def write(
    image: Image, forms: dict[str, str] | None = None, stamps: dict[str, str] | None = None
) -> None:
    """Write the record of ``image`` atomically.

    ``forms``: form -> the digest it was made from; ``stamps``: form -> its stamp when it was made.
    """
    facts: dict[str, Any] = dataclasses.asdict(image)
    del facts["folder"]
    facts |= {"forms": forms or {}, "stamps": stamps or {}}
    with partial(Path(image.folder) / f"{image.name}.json") as path:
        path.write_text(json.dumps(facts, indent=1) + "\n")


def made(image: Image, key: str = "forms") -> dict[str, str]:
    """Return form -> the digest of the image it was made from, for the forms that are files.

    ``key``: ``stamps`` for form -> its stamp when it was made (:func:`iobench.images.tree.stamp`).
    """
    try:
        table = json.loads((Path(image.folder) / f"{image.name}.json").read_text())[key]
        return {str(form): str(text) for form, text in table.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def every(folder: Path = DEFAULT_FOLDER) -> list[tuple[str, Image | None, str]]:
    """Return (name, its image or None, "" or why it cannot be used) for every image we know."""
    rows: list[tuple[str, Image | None, str]] = []
    for name in names():
        image, reason = None, ""
        try:
            image = recorded(name, folder)
            find(name, folder)
        except ImageError as error:
            reason = str(error)
        rows.append((name, image, reason))
    return rows


def _read(path: Path, folder: Path, remedy: str) -> Image:
    try:
        facts = {**json.loads(path.read_text()), "folder": str(folder)}
        known = {f.name: facts[f.name] for f in dataclasses.fields(Image) if f.name in facts}
        for name, value in known.items():
            if type(value) is not (int if name == "bytes" else str):
                raise ValueError(f"{name} is {value!r}")
        image = Image(**known)
        if f"{image.name}.json" != path.name:
            raise ValueError(f"it is the record of {image.name!r}")
    except (ValueError, TypeError, AttributeError) as error:
        raise ImageError(f"{path} is damaged ({error}): remove it and {remedy}") from error
    return image
