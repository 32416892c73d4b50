"""The forms that runtimes run, each made from the one archive: docker, podman, sif, rootfs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import iobench.images.archive as archive
import iobench.images.catalogue as catalogue
import iobench.images.disk as disk
import iobench.images.docker_engine as docker_engine
import iobench.images.podman_engine as podman_engine
import iobench.images.recipe as recipe
import iobench.images.tree as tree
from iobench.core.errors import ImageError
from iobench.core.protocols import Say
from iobench.host import tools
from iobench.images import docker_daemon
from iobench.images.model import Image, check_form, recipe_of

#: The forms that an engine keeps in a store of its own.
ENGINES = {"docker": docker_engine, "podman": podman_engine}
#: Free bytes that a form takes, as multiples of the archive's size, at its peak.
_SPACE = {"docker": 1.2, "podman": 2.4, "sif": 2.2, "rootfs": 1.2}
#: zstd is three times as fast to make as gzip, and as small.
_SQUASHFS = "-comp zstd -Xcompression-level 3"
_LABEL = "iobench.digest"
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
        "sif": "" if tools.apptainer() else "neither apptainer nor singularity is installed",
        "rootfs": "",
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
    if form != "rootfs":  # unpacking compares the layers itself
        archive.check(image.archive)
    if form in ENGINES:
        ENGINES[form].load(image.archive)
    else:
        with disk.lock(folder):
            with disk.partial(_path(image, form)) as path:
                if form == "sif":
                    build_sif(image, path)
                else:
                    progress = f"{image.name} as {form}: layer"
                    archive.unpack(image.archive, path, lambda i, n: say(f"{progress} {i} of {n}"))
            stamps = {**catalogue.made(image, "stamps"), form: tree.stamp(str(_path(image, form)))}
            catalogue.write(image, {**catalogue.made(image), form: image.digest}, stamps)
    return in_form(image, form)


def sif_labels(path: Path) -> dict[str, str]:
    """Return the labels of a SIF.  Raises ImageError for a file that apptainer cannot read."""
    from spython.main import Client

    with _as_singularity() as named, docker_daemon.environment({**tools.apptainer_env(), **named}):
        facts = Client.inspect(str(path), quiet=True)
    try:
        labels: dict[str, str] = facts["attributes"]["labels"]
    except (KeyError, TypeError) as error:
        raise ImageError(f"{path} is no SIF that apptainer can read: make it again") from error
    return labels


@contextlib.contextmanager
def _as_singularity() -> Iterator[dict[str, str]]:
    """Yield what to set so that spython, which calls ``singularity``, finds apptainer by it."""
    found = shutil.which(tools.apptainer() or "apptainer")
    if shutil.which("singularity") or not found:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        os.symlink(found, os.path.join(folder, "singularity"))
        yield {"PATH": os.pathsep.join([folder, os.environ["PATH"]])}


def build_sif(image: Image, out: Path) -> None:
    """Write the SIF of ``image`` to ``out`` by apptainer; neither root nor a daemon is needed."""
    definition = str(recipe.root() / "singularity/image.def")
    words = ["--build-arg", f"ARCHIVE={image.archive.resolve()}"]
    words += ["--build-arg", f"DIGEST={image.digest}"]
    scratch = Path(image.folder) / ".cache"
    apptainer_build(out, definition, scratch, f"building {image.sif}", words)
    found = sif_labels(out).get(_LABEL)
    if found != image.digest:
        raise ImageError(f"{out} carries the digest {found} and was made from {image.digest}")


def apptainer_build(
    out: Path, source: str, folder: Path, what: str, words: Sequence[str] = ()
) -> None:
    """Write the SIF ``out`` of what apptainer calls ``source``; ``folder``: for what it unpacks.

    ``words``: further options.  Raises ImageError, which begins with ``what`` was done.
    """
    program = tools.apptainer()
    if not program:
        raise ImageError(
            "neither apptainer nor singularity is on PATH or in .tools/: `requirements/install.sh "
            "containers`, or `module load apptainer`"
        )
    argv = [program, "-q", "build", "--force", "--mksquashfs-args", _SQUASHFS]
    scratch = folder.resolve() / "apptainer"
    with disk.partial(scratch) as temporary:
        temporary.mkdir()
        env = {"APPTAINER_TMPDIR": str(temporary), "APPTAINER_CACHEDIR": str(temporary)}
        env.update(tools.apptainer_env())
        disk.call([*argv, *words, str(out.resolve()), source], what, env=env)
    shutil.rmtree(scratch)
