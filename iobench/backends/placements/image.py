"""The data inside the image that the runtime runs.

A docker or podman image gets a layer with the data, an unpacked folder a copy of them beside hard
links to its own files; for a SIF they are in a squashfs file, mounted at the data's folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from iobench.backends.placements import _engines, _folders
from iobench.backends.placements._content import Content
from iobench.backends.placements._squash import SquashPlacing
from iobench.core.cases import Placement
from iobench.core.members import PlacementBackend
from iobench.core.protocols import Site


class InImage(SquashPlacing):
    """Puts the data into an image, by the image's form."""

    mount = "image"

    def shared_by(self, form: str, image: str) -> tuple[str, str]:
        """Return form and image; a squashfs file serves any image."""
        return super().shared_by(form, image) if form == "sif" else (form, image)

    def root(self, site: Site, name: str) -> str:
        """Return the tag of the derived image, or a folder."""
        if site.form in _engines.FORMS:
            return _engines.tag(name)
        if site.form == "rootfs":  # hard links reach no other filesystem
            return str(Path(site.image).parent / name)
        return super().root(site, name)

    def space(self, place: Placement) -> Path:
        """Return a folder on the filesystem that the data are written to."""
        return _engines.store(place.form) if place.form in _engines.FORMS else super().space(place)

    @contextmanager
    def put(self, place: Placement, data: Content, image: str) -> Iterator[Placement]:
        """Make the image; an engine's is gone afterwards, a folder is removed by the driver."""
        if place.form in _engines.FORMS:
            making: AbstractContextManager[Placement] = _engines.derived(place, image, data)
        elif place.form == "rootfs":
            making = nullcontext(_folders.tree(place, Path(image), data))
        else:
            making = super().put(place, data, image)
        with making as made:
            yield made


BACKEND = PlacementBackend(InImage, "in the image that the runtime runs", in_image=True)
