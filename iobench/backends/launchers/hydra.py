"""Hydra's mpiexec: several ranks on one node or several, by MPICH, Intel MPI or MVAPICH."""

from __future__ import annotations

import shutil
from typing import List, Literal, Sequence, get_args

from iobench.backends.launchers import _hosts
from iobench.core.errors import SpecError
from iobench.core.members import LauncherBackend
from iobench.core.protocols import Launcher, Ranks
from iobench.host.probes import asked_once

Bindings = Literal["none", "hwthread", "core", "socket", "numa"]
BINDINGS = get_args(Bindings)


class Hydra(Launcher):
    """Starts ranks by Hydra."""

    rank_variables = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")

    def __init__(self, *, program: str = "mpiexec.hydra", bind_to: Bindings = "none") -> None:
        """``program``: its name or path.  ``bind_to``: ``none`` leaves ranks and their loader
        processes to the scheduler; ``core`` puts a rank with all its loader processes on one core.
        """
        if bind_to not in BINDINGS:
            raise SpecError(f"bind_to {bind_to!r} is not possible; allowed: {', '.join(BINDINGS)}")
        if not program or program.startswith("-") or not program.isprintable():
            raise SpecError(f"program {program!r} is no name of a program; leave it out")
        self._program, self._bind_to = program, bind_to

    def available(self) -> str:
        """Return "" when a Hydra is on PATH, else the reason with the remedy."""
        if shutil.which(self._program) is None:
            return (
                f"no program {self._program}: load the module of MPICH or Intel MPI, or set "
                "launcher_options = { program = ... }; for Open MPI use launcher mpirun"
            )
        code, output = asked_once(self._program, "--version")
        if code or not any(name in output for name in ("HYDRA", "Intel(R) MPI")):
            first = output.splitlines()[0] if output else f"exit status {code}"
            return (
                f"{self._program} is not Hydra ({first}): put MPICH's or Intel MPI's first on PATH"
            )
        return ""

    def argv(self, command: Sequence[str], ranks: Ranks) -> List[str]:
        """Return ``mpiexec.hydra ... command``.

        ``forward``: it gives ranks the whole environment (``-genvall``).
        """
        words = [self._program, "-genvall"]
        # "localhost": it would take every node of the batch job
        words += ["-hosts", ",".join(ranks.hosts) or "localhost", "-ppn", str(ranks.on_each)]
        return [*words, "-bind-to", self._bind_to, "-n", str(ranks.count), *command]


BACKEND = LauncherBackend(
    Hydra,
    "several ranks on one node or several, by the mpiexec of MPICH or Intel MPI",
    across=_hosts.IN_A_JOB,
    passed=("PMI_", "MPI_", "HYDRA_", "I_MPI_"),
    judge=_hosts.judge,
)
