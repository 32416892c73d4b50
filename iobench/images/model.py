"""What an image is here: one archive, and what was recorded when it was made."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from iobench.core import registry
from iobench.core.errors import ImageError
from iobench.core.members import ImageRecipe

DEFAULT_FOLDER = Path("images")
#: Of an images' folder: downloads, and what is made for the time being.
CACHE = ".cache"
FORMS = ("docker", "podman", "rootfs", "sif")


def names() -> list[str]:
    """Return the names of the stacks that have an image."""
    return [name for name in registry.names("stacks") if registry.load("stacks", name).image]


def recipe_of(name: str) -> ImageRecipe:
    """Return how a stack's image is built.  Raises ImageError where no such stack or image is."""
    if name not in registry.names("stacks"):
        raise ImageError(f"no image is called {name!r}; there are: {', '.join(names())}")
    found: ImageRecipe | None = registry.load("stacks", name).image
    if found is None:
        raise ImageError(
            f"the stack {name!r} has no image to build (no `image` in its file): its cases run "
            f"with runtime bare; stacks with one: {', '.join(names())}"
        )
    return found


@dataclasses.dataclass(frozen=True)
class Image:
    """A whole image: ``images/<name>.tar`` (as `docker save` writes it) and ``images/<name>.json``.

    ``digest``: ``sha256:...`` of its configuration, the same in every form (docker calls it Id).
    ``recipe``: digest of everything that decides the content, iobench's own code left out: that is
    bound, not baked.  ``version``, ``revision``: the iobench that built it.  ``python``: the
    interpreter inside.  ``base``: where its base came from.  ``pins``: ``exact``, or ``moved``
    with the Debian packages whose locked version the mirror no longer had.  ``bytes``: size of the
    archive.  ``folder``: where it lies; not stored.
    """

    name: str
    digest: str
    recipe: str
    version: str
    revision: str
    architecture: str
    python: str
    base: str
    created: str
    pins: str
    bytes: int = 0
    folder: str = str(DEFAULT_FOLDER)

    @property
    def tag(self) -> str:
        """The name that docker and podman know it by: of the digest, the first 12 digits."""
        return f"iobench-{self.name}:{self.digest.partition(':')[2][:12]}"

    @property
    def archive(self) -> Path:
        """The archive."""
        return Path(self.folder) / f"{self.name}.tar"

    @property
    def sif(self) -> Path:
        """Where its SIF belongs."""
        return Path(self.folder) / f"{self.name}.sif"

    @property
    def rootfs(self) -> Path:
        """Where its unpacked tree belongs."""
        return Path(self.folder) / self.name


def check_form(form: str) -> None:
    """Raise ImageError unless an image can take this form."""
    if form not in FORMS:
        raise ImageError(f"no form is called {form!r}; there are: {', '.join(FORMS)}")
