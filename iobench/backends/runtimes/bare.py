"""No container: the command as it is."""

from __future__ import annotations

from typing import List, Sequence

from iobench.core.members import RuntimeBackend
from iobench.core.protocols import Runtime, Start


class Bare(Runtime):
    """Runs a command on the host, as the user that calls."""

    def argv(self, command: Sequence[str], start: Start) -> List[str]:
        """Return the command, after ``env NAME=value ...`` where there are variables to set."""
        prefix = ["env", *(f"{name}={value}" for name, value in start.env.items())]
        return [*(prefix if start.env else []), *command]


BACKEND = RuntimeBackend(Bare, summary="the host itself, no container")
