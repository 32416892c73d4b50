"""One rank, started as it is."""

from __future__ import annotations

from typing import List, Sequence

from iobench.core.errors import SpecError
from iobench.core.members import LauncherBackend
from iobench.core.protocols import Launcher, Ranks


class Local(Launcher):
    """Starts a single process on this machine."""

    def argv(self, command: Sequence[str], ranks: Ranks) -> List[str]:
        """Return the command.  Raises SpecError for more than one rank."""
        if ranks.count != 1:
            raise SpecError(
                f"launcher 'local' starts one rank, not world_size = {ranks.count}; "
                "set world_size = 1 or choose a launcher that starts several"
            )
        return list(command)


BACKEND = LauncherBackend(Local, "one process on this machine")
