"""Slurm's srun: ranks as a step of the job that the driver runs in."""

from __future__ import annotations

import shutil
from typing import List, Literal, Mapping, Sequence, Tuple, get_args

from iobench.backends.launchers import _hosts
from iobench.core.errors import SpecError
from iobench.core.members import LauncherBackend
from iobench.core.protocols import Launcher

Bindings = Literal["none", "threads", "cores", "sockets", "ldoms"]
BINDINGS = get_args(Bindings)


class SRun(Launcher):
    """Starts ranks by Slurm."""

    def __init__(self, *, mpi: str = "", bind_to: Bindings = "none") -> None:
        """``mpi``: how ranks find each other, as in ``srun --mpi=pmix`` ("": the site's default;
        ``srun --mpi=list`` shows what there is).  ``bind_to``: ``none`` leaves ranks and their
        loader processes all cores of the job; another puts each rank with all of its loader
        processes on its own.
        """
        if bind_to not in BINDINGS:
            raise SpecError(f"bind_to {bind_to!r} is not possible; allowed: {', '.join(BINDINGS)}")
        if mpi and not mpi.replace("_", "").isalnum():
            raise SpecError(f"mpi {mpi!r} is no kind of MPI; `srun --mpi=list` shows them")
        self._mpi, self._bind_to = mpi, bind_to

    def available(self) -> str:
        """Return "" when srun is on PATH, else the reason with the remedy."""
        if shutil.which("srun") is None:
            return "no program srun: this is no node of a Slurm cluster; use launcher mpirun"
        return ""

    def argv(
        self,
        command: Sequence[str],
        *,
        world_size: int,
        hosts: Sequence[str] = (),
        forward: Sequence[str] = (),
    ) -> List[str]:
        """Return ``srun ... command``.

        A step shares the job's cores with the agents' step, which waits.  ``forward``: srun gives
        ranks the whole environment by itself.
        """
        each = _hosts.ranks_each(world_size, hosts)
        words = ["srun", "--overlap", f"--ntasks={world_size}"]
        if hosts:
            words += [f"--nodes={len(hosts)}", f"--ntasks-per-node={each}"]
            words += [f"--nodelist={','.join(hosts)}", "--distribution=block"]
        else:  # all on the job's first node, where the driver is, whatever others it has
            words += ["--nodes=1", "--relative=0"]
        words += [f"--cpu-bind={self._bind_to}", "--kill-on-bad-exit=1", "--export=ALL"]
        return [*words, *([f"--mpi={self._mpi}"] if self._mpi else []), *command]

    def rank(self, env: Mapping[str, str]) -> Tuple[int, int]:
        """Return (rank, world size) from Slurm's variables; (0, 1) outside of a step."""
        return int(env.get("SLURM_PROCID", "0")), int(env.get("SLURM_STEP_NUM_TASKS", "1"))

    def local_rank(self, env: Mapping[str, str]) -> int:
        """Return the rank among those of this node."""
        return int(env.get("SLURM_LOCALID", "0"))


BACKEND = LauncherBackend(
    SRun,
    "ranks as a step of a Slurm job, by srun",
    across={},
    passed=("SLURM_", "PMIX_", "PMI_"),
)
