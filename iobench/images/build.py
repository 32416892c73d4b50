"""From the recipe to ``images/<name>.tar`` and, last of all, its record."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import iobench
import iobench.images.archive as archive
import iobench.images.base as base
import iobench.images.catalogue as catalogue
import iobench.images.debs as debs
import iobench.images.disk as disk
import iobench.images.docker_engine as docker_engine
import iobench.images.forms as forms
import iobench.images.podman_engine as podman_engine
import iobench.images.recipe as recipe
from iobench import services
from iobench.errors import ImageError
from iobench.images.model import DEFAULT_FOLDER, Image, check_name
from iobench.images.wheels import wheelhouse
from iobench.protocols import Say

CACHE = ".cache"
ENGINES = ("docker", "podman")
#: Free bytes that a build takes at its peak: wheels in the context and in a stage, the packages in
#: a stage and in the image, the archive.
_STORE_BYTES = {"torch": 7e9, "caffe": 6e9}
_ARCHIVE_BYTES = {"torch": 2.6e9, "caffe": 2e9}
_PYTHON = "/opt/iobench/bin/python3"
_FIRST_STAGE = {"torch": "python", "caffe": "prefix"}
_PINS = "/opt/iobench/share/debian-pins"


class Engine(Protocol):
    """What builds: the module docker_engine or podman_engine."""

    NAME: str

    def image_id(self, tag: str) -> str:
        """Return the Id of an image it has, else ""."""

    def pull(self, reference: str) -> str:
        """Pull an image; return "" or why not."""

    def import_base(self, tar: Path, reference: str) -> None:
        """Make an image of a root filesystem."""

    def build(self, context: Path, target: str, arguments: Mapping[str, str], say: Say) -> str:
        """Build a stage; return its Id."""

    def read(self, image: str, path: str) -> str:
        """Return the text of a file inside an image."""

    def save(self, image: str, tag: str, out: Path) -> None:
        """Write an archive."""

    def store(self) -> Path:
        """Return the folder it keeps images in."""


def build(
    name: str,
    folder: Path = DEFAULT_FOLDER,
    say: Say = lambda line: None,
    *,
    base_image: str = "",
    force: bool = False,
) -> Image:
    """Build image ``name`` unless ``folder`` holds it, whole and current; return it.

    ``base_image``: another base than the recipe's, from a registry or the engine's own store.
    Whatever makes a build necessary is said.  Raises ImageError; a build that fails or is killed
    leaves no image that looks whole.  The one that it replaces leaves docker's and podman's stores.
    """
    check_name(name)
    try:
        image = catalogue.find(name, folder)
        if not force:
            say(f"image {name} is up to date: {image.digest}")
            return image
        say(f"image {name}: building it anew, as asked")
    except ImageError as error:
        say(f"image {name}: {error}")
    old: Image | None = None
    with disk.lock(folder), _engine(folder, say) as engine:
        with contextlib.suppress(ImageError):
            old = catalogue.recorded(name, folder)
        made = _build(name, folder, say, engine, base_image)
        if old and old.tag != made.tag:
            say(f"removing {old.tag}, which it replaces, from docker's and podman's stores")
            forms.forget(old)
        return made


def total_bytes(names: Iterable[str]) -> float:
    """Return about how many bytes building these takes at its peak, archives included."""
    return sum(_STORE_BYTES[name] + _ARCHIVE_BYTES[name] for name in names)


def engine_name() -> str:
    """Return what builds here: docker, where a daemon answers or can be started; else podman.

    ``IOBENCH_BUILDER`` chooses; ImageError when that is neither.
    """
    wanted = os.environ.get("IOBENCH_BUILDER", "")
    if wanted not in ("", *ENGINES):
        raise ImageError(f"IOBENCH_BUILDER={wanted}: it can be {' or '.join(ENGINES)}")
    if not wanted and not services.possible() and shutil.which("podman"):
        return "podman"
    return wanted or "docker"


@contextlib.contextmanager
def _engine(folder: Path, say: Say) -> Iterator[Engine]:
    if engine_name() == "podman":
        say("building with podman")
        yield podman_engine
        return
    with services.docker(say, folder):
        yield docker_engine
        docker_engine.tidy(folder)


def _build(name: str, folder: Path, say: Say, engine: Engine, base_image: str) -> Image:
    cache = folder / CACHE
    cache.mkdir(parents=True, exist_ok=True)
    disk.check_space(folder, _ARCHIVE_BYTES[name], f"the archive of image {name}")
    disk.check_space(engine.store(), _STORE_BYTES[name], f"building image {name}")
    packages = _debs(name, cache, say)
    reference, base_words, base_pins = _base("torch", cache, say, engine, base_image)
    made_in = reference
    if name == "caffe" and packages is None:  # apt is to find Caffe's packages in there
        made_in = _base(name, cache, say, engine, "")[0]
    top = recipe.root()
    arguments = {
        "BASE_IMAGE": reference,
        "CAFFE_BASE_IMAGE": made_in,
        "VERSION": iobench.__version__,
        "REVISION": recipe.revision(top),
        "RECIPE": recipe.digest(name),
        "BASE": base_words,
    }
    with _context(name, cache, wheelhouse(name, cache, say), packages) as context:
        first = engine.build(context, _FIRST_STAGE[name], arguments, say)
        pins = _pins(engine.read(first, _PINS), base_pins)
        say(f"Debian packages: {pins}")
        built = engine.build(context, name, {**arguments, "PINS": pins}, say)
    tag = f"iobench-{name}:{built.partition(':')[2][:12]}"
    path = folder / f"{name}.tar"
    (folder / f"{name}.json").unlink(missing_ok=True)  # from here on the old one is not whole
    say(f"writing {path}")
    with disk.partial(path) as unfinished:
        engine.save(built, tag, unfinished)
        found = archive.contents(unfinished)
    image = Image(
        name=name,
        digest=found.digest,
        recipe=arguments["RECIPE"],
        version=arguments["VERSION"],
        revision=arguments["REVISION"],
        architecture=str(found.config["architecture"]),
        python=_PYTHON,
        base=base_words,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        pins=pins,
        bytes=path.stat().st_size,
        folder=str(folder),
    )
    if found.digest != built:
        raise ImageError(
            f"{engine.NAME} says the image is {built} and its archive holds {found.digest}: remove "
            f"{path} and build again"
        )
    catalogue.write(image)
    say(f"image {name}: {image.digest}, {image.bytes / 1e9:.2f} GB, {path}")
    return image


def _base(name: str, cache: Path, say: Say, engine: Engine, wanted: str) -> tuple[str, str, str]:
    """Return (reference to build from, what to record of it, "exact" or "moved")."""
    reference = wanted or recipe.BASES[name]
    known = engine.image_id(reference)
    reason = "" if known else engine.pull(reference)
    if not reason:
        return reference, f"{reference} ({engine.image_id(reference)})", "exact"
    if wanted:
        raise ImageError(f"the base {wanted} is neither here nor can it be pulled: {reason}")
    say(f"no registry gives {reference} ({reason})")
    made = base.bootstrap(name, cache, say)
    reference = f"iobench-base:{recipe.SUITES[name]}-{made.digest[:12]}"
    if not engine.image_id(reference):
        say(f"importing the bootstrapped base as {reference}")
        engine.import_base(made.tar, reference)
    words = f"Debian {recipe.SUITES[name]} bootstrapped by mmdebstrap (tar sha256:{made.digest})"
    return reference, words, made.pins


def _pins(text: str, base_pins: str) -> str:
    """Join the packages' state (the file debian-pins) and the base's: ``exact`` when both are."""
    state, *moved = text.split("\n")
    parts = [*(["base"] if base_pins != "exact" else []), *filter(None, moved)]
    return "exact" if state == "exact" and not parts else f"moved: {', '.join(parts)}"


def _debs(name: str, cache: Path, say: Say) -> Path | None:
    """Return a folder with the locked Debian packages, for an image that takes them from us.

    None where not all can be had: then its build takes what the base's mirror has.
    """
    if name != "caffe" or recipe.architecture() != "amd64":
        return None
    try:
        return debs.fetch(name, cache, say)
    except ImageError as error:
        say(f"{error}; the build takes the versions that its base's mirror has")
        return None


@contextlib.contextmanager
def _context(name: str, cache: Path, wheels: Path, packages: Path | None) -> Iterator[Path]:
    """Yield a folder with what the Dockerfile's stages copy, and no more."""
    with disk.partial(cache / f"context-{name}") as context:
        context.mkdir()
        dockerfile, *others = recipe.files(name)
        (context / "Dockerfile").write_text(recipe.stages(dockerfile.read_text(), name))
        (context / "requirements").mkdir()
        for path in others:
            shutil.copy(path, context / "requirements")
        code = Path(iobench.__file__).parent
        unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(code, context / "iobench", ignore=unwanted)
        shutil.copytree(wheels, context / "wheels", copy_function=_link)
        _put_debs(context / "debs", name, packages)
        yield context
    shutil.rmtree(cache / f"context-{name}")


def _put_debs(folder: Path, name: str, packages: Path | None) -> None:
    """Fill the folder of packages; there is a file in any case: an empty folder is left out."""
    folder.mkdir()
    lock = recipe.lock(name)
    for package in debs.packages(lock) if packages else ():
        _link(f"{packages}/{package.file}", str(folder / package.file))
    shutil.copy(lock, folder / ("complete" if packages else "not-all"))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another filesystem, or one without hard links
        shutil.copy(source, target)
