"""Placements that are folders: a copy of the data, an image's tree with the data in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from iobench.backends.placements._content import Content, at
from iobench.core.cases import Placement, to_json
from iobench.core.dataset import MARKER
from iobench.core.errors import DatasetError
from iobench.core.inside import DATA_INSIDE
from iobench.core.protocols import Site
from iobench.host import files
from iobench.host.probes import ask


class FolderPlacing:
    """Copies the data into a folder; a subclass chooses the folder's parent."""

    def shared_by(self, form: str, image: str) -> tuple[str, str]:
        """Return ("", ""): runtime and image do not matter."""
        return "", ""

    def parent(self, site: Site) -> Path:
        """Return where the folder is made: beside the dataset, on the mount under test."""
        return Path(site.dataset.root).parent

    def root(self, site: Site, name: str) -> str:
        return str(self.parent(site) / name)

    def space(self, place: Placement) -> Path:
        return Path(place.root).parent

    @contextmanager
    def put(self, place: Placement, data: Content, image: str) -> Iterator[Placement]:
        """Fill the folder, which the driver removes; the marker comes last, when all is written."""
        root = Path(place.root)
        data.copy_to(root)
        files.settle(root)
        files.write_json(root / MARKER, to_json(at(data.dataset, root)))
        yield dataclasses.replace(place, files=str(root))


def tree(place: Placement, base: Path, data: Content) -> Placement:
    """Link an image's files into a tree of its own, and copy the data in; raises DatasetError."""
    image = Path(place.root, "rootfs")
    code, output = ask(["cp", "-a", "--link", str(base), str(image)], None)
    if code:
        raise DatasetError(
            f"placement image: cannot link the files of {base} ({output}): own them, or run the "
            "image as a SIF"
        )
    root = image / DATA_INSIDE.lstrip("/")
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o755)
    data.copy_to(root)
    files.settle(root)
    return dataclasses.replace(place, image=str(image), files=str(root))
