"""Has a filesystem spread the files of a new folder as a case asks, and looks whether it does."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping

from iobench.core.cases import Scalar
from iobench.core.errors import DatasetError
from iobench.core.striping import Striping, striping
from iobench.host import mounts
from iobench.host.filesystems import filesystem_for


def stripe(folder: Path, options: Mapping[str, Scalar]) -> None:
    """Have files that will be written to an empty folder spread as a case's ``striping`` says.

    Raises DatasetError, with the reason, where that is not possible, or the folder then says
    something else.
    """
    wanted = striping(**options)  # type: ignore[arg-type]
    if wanted == Striping():
        return
    _, filesystem = filesystem_for(folder)
    mount = mounts.mount_of(folder)
    where = f"striping ({wanted}) is not possible on {mount.fstype} at {mount.mount_point}"
    try:
        filesystem.stripe(folder, wanted)
    except DatasetError as error:
        raise DatasetError(f"{where}: {error}") from None
    except OSError as error:
        raise DatasetError(f"{where}: {error.strerror}") from None
    found = filesystem.striping(folder)
    if not wanted.met_by(found):
        raise DatasetError(f"{where}: the folder has {found} after it was set")


def striping_of(path: Path) -> Striping:
    """Return how a file is spread, or the new files of a folder will be."""
    return filesystem_for(path)[1].striping(path)
