"""Data in a filesystem image, as HPC sites keep small files: one squashfs file on the mount.

The samples are stored as they are: compressed once more, a cold read would measure mksquashfs.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from iobench import dataset as datasets
from iobench import registry
from iobench.model import Placement
from iobench.placements.content import Content

NAME = "data.sqfs"
_AS_IT_IS = ("-noI", "-noD", "-noF", "-noX", "-no-xattrs", "-no-progress", "-quiet")


def packed(place: Placement, data: Content) -> Placement:
    """Make the file.  Raises DatasetError where mksquashfs (4.5 or later) is missing or fails."""
    path = Path(place.root, NAME)
    argv = ["mksquashfs", "-", str(path), "-tar", *_AS_IT_IS]
    data.send(argv, os.geteuid(), os.getegid(), f"placement {place.kind}")
    datasets.settle(path.parent)
    return dataclasses.replace(place, files=str(path), filesystem=_reader(), inside=True)


def _reader() -> str:
    """Return what mounts such files here: ``squashfs`` (the kernel), or ``squashfuse``."""
    mounts = registry.load("runtimes", "apptainer").data_images
    return str(mounts()) if mounts else ""
