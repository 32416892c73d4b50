"""How the files of a case are spread over a filesystem's targets: what a spec may ask for."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Annotated, List, Protocol

from iobench.core.errors import DatasetError, SpecError, shown
from iobench.core.options import Range

#: As many targets as there are.
ALL = -1
_POOL = re.compile(r"[A-Za-z0-9_.-]*")


@dataclasses.dataclass(frozen=True)
class Striping:
    """How files are spread; what is 0 or "" was not asked for, or is not known.

    ``count``: targets a file (:data:`ALL`: every one); of a filesystem that keeps whole files,
    those that a folder's files are on.  ``bytes``: of a file that lie on one target in a row.
    ``pool``: the group of targets.
    """

    count: int = 0
    bytes: int = 0
    pool: str = ""

    def __str__(self) -> str:
        """Return what is set, as a spec has it."""
        found: List[str] = [f"{k} = {shown(v)}" for k, v in vars(self).items() if v]
        return ", ".join(found) or "nothing"

    def met_by(self, found: Striping) -> bool:
        """Return whether what is asked for here is so in ``found``."""
        return all(getattr(found, k) == v for k, v in vars(self).items() if v)


def striping(
    *,
    count: Annotated[int, Range(ALL, 2000)] = 0,
    bytes: Annotated[int, Range(0, 4 << 30)] = 0,
    pool: str = "",
) -> Striping:
    """Return what a spec asks for; raises SpecError for a pool that can be none."""
    if not _POOL.fullmatch(pool):
        raise SpecError(f"pool = {shown(pool)}; allowed: letters, digits and '.', '_', '-'")
    return Striping(count, bytes, pool)


class Spreading(Protocol):
    """What a filesystem does about striping: nothing, unless it says otherwise."""

    def stripe(self, folder: Path, wanted: Striping) -> None:
        """Have new files of an empty folder spread as wanted, or raise DatasetError with why not.

        What folders below it inherit is up to the filesystem: each is asked for.
        """
        raise DatasetError("where files lie there is not for its users to choose")

    def striping(self, path: Path) -> Striping:
        """Return how a file is spread, or the new files of a folder will be, as far as it shows."""
        return Striping()
