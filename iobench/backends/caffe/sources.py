"""What Caffe's data layers are pointed at, beside the data: lists, and folders of links."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from pathlib import Path
from typing import Tuple

import numpy as np

from iobench.backends.caffe import hdf5
from iobench.backends.formats import _sstable
from iobench.core import transforms
from iobench.core.errors import DatasetError, SpecError
from iobench.core.protocols import LoadRequest

#: Largest whole number up to which float32, Caffe's type of a label, holds every one.
_EXACT = 1 << 24


class Sources:
    """The sources of one request, written into a folder of their own when they are asked for."""

    def __init__(self, request: LoadRequest) -> None:
        self._request = request
        self._written = contextlib.ExitStack()

    def close(self) -> None:
        """Remove what was written.  Idempotent."""
        self._written.close()

    @functools.cached_property
    def folder(self) -> Path:
        """The folder, which lasts until :meth:`close`."""
        made = tempfile.TemporaryDirectory(prefix="iobench-caffe-")
        return Path(self._written.enter_context(made))

    @functools.cached_property
    def database(self) -> Path:
        """A folder of links: Caffe locks, and LevelDB writes, where a database is opened."""
        if self._request.format_name == "leveldb":
            shadow = _sstable.shadow(self._request.root)
            self._written.callback(_sstable.remove, shadow)
            return shadow
        folder = self.folder / "lmdb"
        folder.mkdir()
        (folder / "data.mdb").symlink_to((self._request.root / "data.mdb").absolute())
        return folder

    def listed(self, rows: bool) -> str:
        """Write the list of images in the request's order; return its path."""
        request = self._request
        paths = request.format.files(request.dataset, request.root)
        ids = np.asarray(request.ids).tolist()
        numbers = range(len(ids)) if rows else np.asarray(request.labels)[ids].tolist()
        if rows and len(ids) > _EXACT:
            raise SpecError(f"{len(ids)} samples are more than Caffe's float labels can count")
        path = self.folder / ("rows.txt" if rows else "labels.txt")
        with open(path, "wb") as file:
            for sample, number in zip(ids, numbers):
                name = os.fsencode(paths[sample])
                if b"\n" in name:
                    raise DatasetError(f"{paths[sample]!s} has a line break in its name: rename it")
                file.write(b"%s %d\n" % (name, number))
        return str(path)

    def files(self, *, shuffled: bool) -> str:
        """Write the list of HDF5 files, in order; return its path.

        Raises DatasetError where none are there, or a path has blanks.
        """
        found = hdf5.files(self._request.root)
        if not found:
            raise DatasetError(
                f"{self._request.root} holds no files in Caffe's layout: run `iobench data "
                "convert` to hdf5-float"
            )
        names = [str(path) for path in found]
        if not shuffled and len(names) > 1:
            last = self.folder / "last.h5"
            hdf5.write_last(last, transforms.transform(self._request.transform).shape)
            names.append(str(last))
        if any(c.isspace() for name in names for c in name):
            raise DatasetError(f"Caffe's list of HDF5 files takes no blanks: move {names[0]!r}")
        path = self.folder / "files.txt"
        path.write_text("".join(f"{name}\n" for name in names))
        return str(path)


def stride(request: LoadRequest) -> Tuple[int, int]:
    """Return (rank, world size) whose records are the request's ids.

    Caffe's ranks walk the whole database; rank r of n keeps the records r, r + n, r + 2n ...
    Raises SpecError for any other order.
    """
    ids = np.asarray(request.ids)
    rank = int(ids[0])
    world = int(ids[1]) - rank if len(ids) > 1 else rank + 1
    if world < 1 or rank >= world or not np.array_equal(ids, rank + world * np.arange(len(ids))):
        raise SpecError(
            f"Caffe's layer walks the whole of {request.root.name} in stored order, each rank its "
            "stride: use order stored and all samples"
        )
    return rank, world
