"""The forms that runtimes run, each made from the one archive: docker, podman, sif, rootfs."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import iobench.images.archive as archive
import iobench.images.catalogue as catalogue
import iobench.images.disk as disk
import iobench.images.docker_engine as docker_engine
import iobench.images.podman_engine as podman_engine
import iobench.images.sif as sif
import iobench.images.tree as tree
from iobench.core.errors import ImageError
from iobench.core.protocols import Say
from iobench.host import tools
from iobench.images import docker_daemon
from iobench.images.model import CACHE, Image, check_form, recipe_of

#: The forms that an engine keeps in a store of its own.
ENGINES = {"docker": docker_engine, "podman": podman_engine}
#: Free bytes that a form takes, as multiples of the archive's size, at its peak.
_SPACE = {"docker": 1.2, "podman": 2.4, "rootfs": 1.2, "sif": 2.6}
#: What overlay drivers call the folders of an image: its last layer, and those below it.
_LAYERS = ("UpperDir", "LowerDir")


def in_form(image: Image, form: str, *, untouched: bool = True) -> str:
    """Return what a runtime that takes ``form`` is started with: a tag, a .sif file, a folder.

    Raises ImageError when the form was not made yet, was made from another image, or (with
    ``untouched``) its files are not those that were made, by their sizes and times.
    """
    check_form(form)
    remedy = f"`iobench image build {image.name} --form {form}`"
    if form in ENGINES:
        engine = ENGINES[form]
        if form == "docker" and (reason := docker_daemon.docker_answers()):
            raise ImageError(f"no Docker daemon answers ({reason}), so {image.tag} cannot be run")
        found = engine.image_id(image.tag)
        if found != image.digest:
            state = f"is another image ({found})" if found else "is not loaded"
            raise ImageError(f"{form}: {image.tag} {state}: {remedy}")
        return image.tag
    path = _path(image, form)
    if not path.exists():
        raise ImageError(f"{path} is not made yet: {remedy}")
    made = catalogue.made(image).get(form, "nothing on record")
    if made != image.digest:
        raise ImageError(
            f"{path} was made from another image ({made}) than {image.archive} ({image.digest}): "
            f"{remedy}"
        )
    was = catalogue.made(image, "stamps").get(form)
    if untouched and was and was != tree.stamp(str(path)):
        raise ImageError(f"{path} was changed since it was made (files edited, purged): {remedy}")
    return str(path.resolve())


def _path(image: Image, form: str) -> Path:
    return image.sif if form == "sif" else image.rootfs


def paths(source: str, form: str) -> list[Path]:
    """Return the files and folders of this host that an image is read from when it is started.

    ``source``: as :func:`in_form` returns it.  Raises ImageError where an engine does not keep
    layers as folders that this user sees.
    """
    if form not in ENGINES:
        return [Path(source)]
    where = ENGINES[form].stored(source)
    layers = [p for name in _LAYERS for p in where.get(name, "").split(":") if p]
    if not layers:
        raise ImageError(f"{form} does not say where it keeps the layers of {source}")
    if hidden := next((p for p in layers if not os.path.isdir(p)), ""):
        raise ImageError(f"{form} keeps {source} in {hidden}, which is no folder that is seen here")
    return [Path(p) for p in layers]


def make_form(image: Image, form: str, say: Say = lambda line: None) -> str:
    """Make ``form`` of ``image`` unless it is there; return what :func:`in_form` returns."""
    check_form(form)
    if form == "docker":
        with docker_daemon.docker(say, Path(image.folder)):
            return _make(image, form, say)
    return _make(image, form, say)


def forget(image: Image) -> None:
    """Remove ``image`` from docker's and podman's stores, unless a container was made from it."""
    if not docker_daemon.docker_answers():
        docker_engine.remove(image.tag)
    if shutil.which("podman"):
        podman_engine.remove(image.tag)


def remove(name: str, folder: Path) -> list[str]:
    """Remove an image in every form, its not its downloads; return what went."""
    recipe_of(name)
    if not folder.is_dir():
        return []
    with disk.lock(folder):
        with contextlib.suppress(ImageError):
            forget(catalogue.recorded(name, folder))
        # the record first: what has none is not whole
        paths = [folder / f"{name}{end}" for end in (".json", ".tar", ".sif", "")]
        there = [path for path in paths if path.exists()]
        for path in there:
            disk.discard(path)
    return [str(path) for path in there]


def possible() -> dict[str, str]:
    """Return form -> "" where this machine can make and run it, else what is missing."""
    silent = "" if docker_daemon.possible() else docker_daemon.docker_answers()
    return {
        "docker": silent and f"no Docker daemon: {silent}",
        "podman": "" if shutil.which("podman") else "podman is not installed",
        "rootfs": "",
        "sif": "" if tools.apptainer() else "neither apptainer nor singularity is installed",
    }


def _make(image: Image, form: str, say: Say) -> str:
    try:
        found = in_form(image, form)
    except ImageError as error:
        say(f"{image.name} as {form}: {error}")
    else:
        say(f"{image.name} as {form}: there already, {found}")
        return found
    folder = Path(image.folder)
    if form not in ENGINES and not os.access(folder, os.W_OK, effective_ids=True):
        raise ImageError(
            f"{image.name} as {form} has to be made, and this user may not write in {folder}: have "
            f"its owner make it, `iobench image build {image.name} --form {form} --images {folder}`"
            ", or give another folder (--images)"
        )
    where = ENGINES[form].store() if form in ENGINES else folder
    disk.check_space(where, _SPACE[form] * image.bytes, f"{image.name} as {form}")
    say(f"{image.name} as {form}: making it from {image.archive}")
    if form in ENGINES:
        archive.check(image.archive)  # unpacking compares the layers itself
        ENGINES[form].load(image.archive)
    else:
        with disk.lock(folder):
            with disk.partial(_path(image, form)) as path:
                _write(image, form, path, say)
            stamps = {**catalogue.made(image, "stamps"), form: tree.stamp(str(_path(image, form)))}
            catalogue.write(image, {**catalogue.made(image), form: image.digest}, stamps)
    return in_form(image, form)


def _write(image: Image, form: str, path: Path, say: Say) -> None:
    if form == "rootfs":
        _unpack(image, path, say)
        return
    with _tree(image, say) as root:
        sif.build(image, root, path)


@contextlib.contextmanager
def _tree(image: Image, say: Say) -> Iterator[Path]:
    """Yield a folder with the image's files: its form ``rootfs``, or one for the time being."""
    with contextlib.ExitStack() as undo:
        try:
            root = Path(in_form(image, "rootfs"))
        except ImageError:
            root = undo.enter_context(disk.scratch(Path(image.folder, CACHE, "tree"))) / "root"
            _unpack(image, root, say)
        yield root


def _unpack(image: Image, root: Path, say: Say) -> None:
    words = f"{image.name}: unpacking layer"
    archive.unpack(image.archive, root, lambda i, n: say(f"{words} {i} of {n}"))
