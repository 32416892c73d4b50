"""From the recipe to ``images/<name>.tar`` and, last of all, its record."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

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
from iobench.core.clock import utc
from iobench.core.errors import ImageError
from iobench.core.inside import PREFIX_INSIDE, PYTHON_INSIDE
from iobench.core.members import ImageRecipe
from iobench.core.protocols import Say
from iobench.images import docker_daemon
from iobench.images.model import CACHE, DEFAULT_FOLDER, Image, recipe_of
from iobench.images.wheels import wheelhouse

_PINS = f"{PREFIX_INSIDE}/share/debian-pins"


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
    The reason for a build is reported by ``say``.  Raises ImageError; a build that fails or is
    killed leaves no image that looks whole.  The replaced one leaves docker's and podman's stores.
    """
    recipe_of(name)
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
    return sum(recipe_of(n).store_bytes + recipe_of(n).archive_bytes for n in names)


def engine_name() -> str:
    """Return what builds here: ``IOBENCH_BUILDER``, else docker where possible, else podman."""
    wanted = os.environ.get("IOBENCH_BUILDER", "")
    if wanted not in ("", *forms.ENGINES):
        raise ImageError(f"IOBENCH_BUILDER={wanted}: it can be {' or '.join(forms.ENGINES)}")
    if not wanted and not docker_daemon.possible() and shutil.which("podman"):
        return "podman"
    return wanted or "docker"


@contextlib.contextmanager
def _engine(folder: Path, say: Say) -> Iterator[ModuleType]:
    if engine_name() == "podman":
        say("building with podman")
        yield podman_engine
        return
    with docker_daemon.docker(say, folder):
        yield docker_engine
        docker_engine.tidy(folder)


def _build(name: str, folder: Path, say: Say, engine: ModuleType, base_image: str) -> Image:
    cache, wanted = folder / CACHE, recipe_of(name)
    disk.check_space(folder, wanted.archive_bytes, f"the archive of image {name}")
    disk.check_space(engine.store(), wanted.store_bytes, f"building image {name}")
    packages = debs.fetch(wanted.suite, cache, say) if wanted.locked else None
    reference, base_words, base_pins = _base(cache, say, engine, base_image)
    bases = {"BASE_IMAGE": reference}
    image = Image(
        name=name,
        digest="",
        recipe=recipe.digest(name),
        version=iobench.__version__,
        revision=recipe.revision(recipe.root()),
        architecture=recipe.architecture(),
        python=PYTHON_INSIDE,
        base=base_words,
        created=utc(),
        pins="",
        folder=str(folder),
    )
    with _context(name, cache, wheelhouse(name, cache, say), packages) as context:
        first = engine.build(context, wanted.first, bases, {}, say)
        pins = _pins(engine.read(first, _PINS), base_pins)
        say(f"Debian packages: {pins}")
        image = dataclasses.replace(image, pins=pins)
        built = engine.build(context, name, bases, _labels(image, wanted), say)
    return _save(dataclasses.replace(image, digest=built), engine, say)


def _labels(image: Image, wanted: ImageRecipe) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": f"iobench {image.name}",
        "org.opencontainers.image.description": wanted.description,
        "org.opencontainers.image.version": image.version,
        "org.opencontainers.image.revision": image.revision,
        "org.opencontainers.image.base.name": image.base,
        "iobench.recipe": image.recipe,
        "iobench.python": image.python,
        "iobench.pins": image.pins,
    }


def _save(image: Image, engine: ModuleType, say: Say) -> Image:
    """Write the archive of a built image and, last of all, its record."""
    Path(image.folder, f"{image.name}.json").unlink(missing_ok=True)  # the old one is not whole
    say(f"writing {image.archive}")
    with disk.partial(image.archive) as unfinished:
        engine.save(image.digest, image.tag, unfinished)
        found = archive.contents(unfinished)
    if found.digest != image.digest:
        raise ImageError(
            f"{engine.NAME} says the image is {image.digest} and its archive holds {found.digest}: "
            f"remove {image.archive} and build again"
        )
    image = dataclasses.replace(
        image, architecture=str(found.config["architecture"]), bytes=image.archive.stat().st_size
    )
    catalogue.write(image)
    say(f"image {image.name}: {image.digest}, {image.bytes / 1e9:.2f} GB, {image.archive}")
    return image


def _base(cache: Path, say: Say, engine: ModuleType, wanted: str) -> tuple[str, str, str]:
    """Return (reference to build from, what to record of it, "exact" or "moved")."""
    reference = wanted or f"debian:{recipe.SUITE}-slim"
    known = engine.image_id(reference)
    reason = "" if known else engine.pull(reference)
    if not reason:
        return reference, f"{reference} ({engine.image_id(reference)})", "exact"
    if wanted:
        raise ImageError(f"the base {wanted} is neither here nor can it be pulled: {reason}")
    say(f"no registry gives {reference} ({reason})")
    made = base.bootstrap(cache, say)
    reference = f"iobench-base:{recipe.SUITE}-{made.digest[:12]}"
    if not engine.image_id(reference):
        say(f"importing the bootstrapped base as {reference}")
        engine.import_base(made.tar, reference)
    words = f"Debian {recipe.SUITE} bootstrapped by mmdebstrap (tar sha256:{made.digest})"
    return reference, words, made.pins


def _pins(text: str, base_pins: str) -> str:
    """Join the packages' state (the file debian-pins) and the base's: ``exact`` when both are."""
    state, *moved = text.split("\n")
    parts = [*(["base"] if base_pins != "exact" else []), *filter(None, moved)]
    return "exact" if state == "exact" and not parts else f"moved: {', '.join(parts)}"


@contextlib.contextmanager
def _context(name: str, cache: Path, wheels: Path, packages: Path | None) -> Iterator[Path]:
    """Yield a folder with what the Dockerfile's stages copy, and no more."""
    with disk.scratch(cache / f"context-{name}") as context:
        dockerfile, *others = recipe.files(name)
        (context / "Dockerfile").write_text(recipe.stages(dockerfile.read_text(), name))
        (context / "requirements").mkdir()
        for path in others:
            shutil.copy(path, context / "requirements")
        code = Path(iobench.__file__).parent
        unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(code, context / "iobench", ignore=unwanted)
        shutil.copytree(wheels, context / "wheels", copy_function=_link)
        if packages:
            (context / "debs").mkdir()
            for package in debs.packages(recipe.lock(recipe_of(name).suite)):
                _link(f"{packages}/{package.file}", str(context / "debs" / package.file))
        yield context


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another filesystem, or one without hard links
        shutil.copy(source, target)
