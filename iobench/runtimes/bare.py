"""No container: the command as it is."""

from __future__ import annotations

from pathlib import Path
from typing import List, Mapping, Sequence, Tuple

from iobench.model import Scalar
from iobench.protocols import Runtime, RuntimeBackend


class Bare:
    """Runs a command on the host, as the user that calls."""

    def available(self) -> str:
        """Return "": the host is always here."""
        return ""

    def argv(
        self,
        command: Sequence[str],
        *,
        image: str,
        binds: Sequence[Tuple[Path, Path]],
        env: Mapping[str, str],
    ) -> List[str]:
        """Return the command, after ``env NAME=value ...`` where there are variables to set.

        ``image`` and ``binds`` mean nothing here: the host's own files are seen where they are.
        """
        prefix = ["env", *(f"{name}={value}" for name, value in env.items())] if env else []
        return [*prefix, *command]

    def identify(self, image: str) -> Mapping[str, Scalar]:
        """Return {}: there is no image."""
        return {}


def make() -> Runtime:
    """Return the runtime."""
    return Bare()


BACKEND = RuntimeBackend(make=make, summary="the host itself, no container")
