"""How the files of a case are spread over a filesystem's targets: what a spec may ask for."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, List

from iobench.core.errors import SpecError, shown
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
