"""Data in a filesystem image, as HPC sites keep small files: one squashfs file on the mount.

The samples are stored as they are: compressed once more, a cold read would measure mksquashfs.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from iobench.backends.placements._content import Content
from iobench.backends.placements._folders import FolderPlacing
from iobench.core import registry
from iobench.core.cases import Placement
from iobench.host import files

NAME = "data.sqfs"
_AS_IT_IS = ("-noI", "-noD", "-noF", "-noX", "-no-xattrs", "-no-progress", "-quiet")


class SquashPlacing(FolderPlacing):
    """Puts the data into a squashfs file beside the dataset; ``mount``: how a runtime shows it."""

    mount = ""

    def shared_by(self, form: str, image: str) -> tuple[str, str]:
        """Return ("sif", ""): one file serves every image."""
        return "sif", ""

    @contextmanager
    def put(self, place: Placement, data: Content, image: str) -> Iterator[Placement]:
        """Make the file, in a folder which the driver removes."""
        yield packed(dataclasses.replace(place, mount=self.mount), data)


def packed(place: Placement, data: Content) -> Placement:
    """Make the file.  Raises DatasetError where mksquashfs (4.5 or later) is missing or fails."""
    path = Path(place.root, NAME)
    argv = ["mksquashfs", "-", str(path), "-tar", *_AS_IT_IS]
    data.send(argv, os.geteuid(), os.getegid(), f"placement {place.kind}")
    files.settle(path.parent)
    mounts = registry.load("runtimes", "apptainer").data_images()
    return dataclasses.replace(place, files=str(path), filesystem=mounts, inside=True)
