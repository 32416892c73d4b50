"""Images of the user's own: run as they are, from a store, a SIF file or an unpacked folder.

What only apptainer brings into its form is kept as a SIF in the folder ``own`` of the images.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from iobench.core.errors import ImageError
from iobench.core.inside import OWN_PATH
from iobench.core.own_images import SOURCES, forms_of, source_of
from iobench.core.protocols import Say
from iobench.images import archive, disk, docker_engine, forms, sif, tree

#: Of the images' folder: where SIF files are that were made of a reference.
FOLDER = "own"
#: How each form is called in a message, and what gives it.
_WAYS = {
    "docker": "docker://name:tag or docker-daemon:name:tag",
    "podman": "docker://name:tag",
    "sif": "a .sif file, or docker://name:tag",
    "rootfs": "a folder (`apptainer build --sandbox FOLDER IMAGE` makes one)",
}


def use(image: str, form: str, folder: Path, say: Say) -> tuple[str, str]:
    """Return an own image's digest and what a runtime that takes ``form`` is started with.

    The digest is docker's or podman's Id, a SIF's sha256, a folder's stamp
    (:func:`iobench.images.tree.stamp`).  Raises ImageError where it is not there, cannot be pulled
    or has no such form.
    """
    check(image)
    takes(image, form)
    if form in forms.ENGINES:
        found = _stored(image, form, say)
        return found, found.removeprefix("sha256:")
    path = Path(image).resolve()
    if form == "rootfs":
        return tree.stamp(str(path)), str(path)
    if source_of(image):
        path = _fetched(image, folder, say)
    facts = path.stat()
    return f"sha256:{_sha256(path, facts.st_size, facts.st_mtime_ns)}", str(path)


def takes(image: str, form: str) -> None:
    """Raise ImageError where an image cannot be brought into a form."""
    if form not in forms_of(image):
        raise ImageError(f"cannot run {image}: it takes {_WAYS[form]}")


def check(image: str) -> None:
    """Raise ImageError where a file or folder that an image is named by is not there."""
    source = source_of(image)
    path = Path(image.removeprefix("docker-archive:"))
    if source and source != "docker-archive:":
        return
    if not os.path.exists(path):
        known = ", ".join(SOURCES)
        raise ImageError(
            f"image {image}: there is no such file or folder, nor is it one of {known}"
        )
    if not source and path.is_dir() == image.endswith(".sif"):
        raise ImageError(
            f"image {image}: a SIF file ends in .sif, and all other images that are paths are "
            "folders; write docker-archive:FILE for what `docker save` writes"
        )


def python_in(root: str) -> str:
    """Return the first python3 on ``OWN_PATH`` in a folder, links followed as inside it.

    Raises ImageError where there is none.
    """
    top = Path(root).resolve()
    for place in OWN_PATH.split(":"):
        found = archive.within(top, f"{place}/python3")
        if found.is_file():
            return str(found)
    raise ImageError(f"no python3 in {', '.join(OWN_PATH.split(':'))} of {root}")


def _stored(image: str, form: str, say: Say) -> str:
    """Return the Id of a reference in an engine's store, pulled where it is not there."""
    engine, source = forms.ENGINES[form], source_of(image)
    name = image.removeprefix(source)
    found, reason = engine.image_id(name), "docker-daemon: is never pulled"
    if not found and source == "docker://":
        say(f"{form}: pulling {name}")
        reason = engine.pull(name if ":" in name.rpartition("/")[2] else f"{name}:latest")
        found = engine.image_id(name)
    if not found:
        raise ImageError(
            f"{form} does not have the image {name} and cannot pull it ({reason}): pull or load it "
            "yourself, or give a SIF file or a folder"
        )
    return str(found)


def _fetched(image: str, folder: Path, say: Say) -> Path:
    """Return the SIF of a reference; it is made where it is not there yet."""
    name = image.removeprefix(source := source_of(image))
    what = image
    if source == "docker-daemon:":
        what += docker_engine.image_id(name)
    elif source == "docker-archive:":
        what += tree.stamp(name)
    path = folder / FOLDER / f"{hashlib.sha256(what.encode()).hexdigest()[:16]}.sif"
    if not path.exists():
        say(f"apptainer: making {path} of {image}")
        with disk.partial(path) as unfinished:
            sif.apptainer_build(unfinished, image, path.parent, f"making a SIF of {image}")
    return path.resolve()


@functools.lru_cache
def _sha256(path: Path, size: int, mtime_ns: int) -> str:
    return disk.sha256(path)
