"""Image caffe's files on this host, without a container: the prefix that `make caffe` leaves.

The same script makes it here and in the image's build, from the same packages (by sha256) and
wheels, so both hold the same files.  It needs no root, and runs from any folder.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from iobench.backends.stacks import _prefix
from iobench.core.errors import ImageError
from iobench.core.members import ImageRecipe
from iobench.core.protocols import Say
from iobench.images import debs, disk, recipe
from iobench.images.model import names, recipe_of
from iobench.images.wheels import wheelhouse

#: The C library that Debian bullseye's binaries were built for.
OLDEST_GLIBC = (2, 31)


def install(
    name: str, folder: Path, cache: Path, say: Say = lambda line: None, *, force: bool = False
) -> dict[str, str]:
    """Make the prefix of image ``name`` at ``folder`` unless it is there and current; return facts.

    ``cache``: keeps what was downloaded.  An interrupted or failed call leaves what was at
    ``folder`` as it was.  Raises ImageError: another architecture, an old glibc, no network, a full
    disk, or files that do not start here.
    """
    made_of = recipe_of(name)
    if not made_of.script:
        raise ImageError(
            f"{name} is not installed like this: `make setup` installs its packages; those that "
            f"are: {', '.join(n for n in names() if recipe_of(n).script)}"
        )
    check_host()
    current = wanted(name)
    found = _prefix.record(folder)
    if found.get("recipe") == current and not force:
        say(f"Caffe is up to date in {folder}: {_words(found)}")
        return found
    if found:
        say(f"{folder} is of recipe {found.get('recipe')} and this iobench's is {current}")
    disk.check_space(folder, made_of.prefix_bytes, "installing Caffe", by="--to")
    say(
        f"installing Caffe and its Python 3.9 into {folder}: about 0.6 GB to fetch, 1.7 GB on "
        "disk, one to three minutes; no root, and the system is not touched"
    )
    with disk.lock(cache):
        packages, wheels = debs.fetch(made_of.suite, cache, say), wheelhouse(name, cache, say)
        with disk.partial(folder) as unfinished, disk.scratch(cache / "caffe-root") as root:
            _make(made_of, packages, wheels, root, unfinished, say)
    found = _prefix.record(folder)
    say(f"Caffe is in {folder}: {_words(found)}")
    return found


def wanted(name: str) -> str:
    """Return the recipe that a prefix made now would record.  Raises ImageError outside a clone."""
    module = recipe_of(name).script.removesuffix(".py")
    code = f"import sys, pathlib, {module} as m; print(m.recipe(pathlib.Path(sys.argv[1])))"
    folder = str(recipe.root() / "requirements")
    argv = [sys.executable, "-P", "-B", "-c", code, folder]
    return disk.call(argv, "reading the recipe", env={"PYTHONPATH": folder}).strip()


def check_host() -> None:
    """Raise ImageError where Debian's binaries for x86_64 cannot run."""
    here = recipe.architecture()
    remedy = "set CAFFE_ROOT to a Caffe that was built for this machine"
    if here != "amd64":
        raise ImageError(
            f"Caffe can be installed on amd64 only, and this machine is {here}: {remedy}"
        )
    kind, version = platform.libc_ver()
    if kind != "glibc" or tuple(map(int, version.split(".")[:2])) < OLDEST_GLIBC:
        raise ImageError(
            f"Caffe's binaries need glibc {OLDEST_GLIBC[0]}.{OLDEST_GLIBC[1]} or newer, and this "
            f"host has {kind or 'another C library'} {version}: run it in a container (a spec "
            f'whose [case] says runtime = "apptainer" installs nothing here), or {remedy}'
        )


def _make(
    made_of: ImageRecipe, packages: Path, wheels: Path, root: Path, prefix: Path, say: Say
) -> None:
    requirements = recipe.root() / "requirements"
    locked = debs.packages(recipe.lock(made_of.suite))
    say(f"unpacking {len(locked)} packages")
    for package in locked:
        debs.unpack(packages / package.file, root)
    pins = root / "debian-pins"
    pins.write_text("exact\n")
    say("making them run from any folder, adding the wheels, compiling byte code")
    argv = [sys.executable, "-B", str(requirements / made_of.script), root, prefix, wheels, pins]
    disk.call([str(word) for word in argv], "installing Caffe", env={"PYTHONPATH": ""})


def _words(found: dict[str, str]) -> str:
    return ", ".join(f"{k} {v}" for k, v in found.items() if k not in ("recipe", "pins"))
