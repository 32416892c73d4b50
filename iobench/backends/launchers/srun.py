"""Slurm's srun: ranks as a step of the job that the driver runs in."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
from typing import List, Literal, Optional, Sequence, get_args

from iobench.core import registry
from iobench.core.cases import Case
from iobench.core.errors import SpecError
from iobench.core.members import Failure, LauncherBackend
from iobench.core.protocols import Launcher, Ranks

#: A task's end, as srun reports it: ``srun: error: n2: task 1: Killed``, or the tasks ``1,3-4``.
_TASK = re.compile(r"^srun: error: \S+: tasks? (\d+)[\d,-]*: (.+)$", re.MULTILINE)
_EXITED = re.compile(r"Exited with exit code (\d+)")
_SIGNALS = {
    signal.strsignal(s): s.value for s in signal.valid_signals() if isinstance(s, signal.Signals)
}
#: Lines of srun and of its daemon on a node; the others are the ranks' own.
_OWN = ("srun: ", "slurmstepd: ")

#: Options by which a site's plug-ins of Slurm (pyxis; CSCS's engine), or Slurm, start a container.
_CONTAINER = re.compile(r"--((no-)?container(-[a-z-]+)?|environment)(=.+)?")

Bindings = Literal["none", "threads", "cores", "sockets", "ldoms"]
BINDINGS = get_args(Bindings)


class SRun(Launcher):
    """Starts ranks by Slurm."""

    rank_variables = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")

    def __init__(self, *, mpi: str = "", bind_to: Bindings = "none", container: str = "") -> None:
        """``mpi``: how ranks find each other, as in ``srun --mpi=pmix`` ("": the site's default;
        ``srun --mpi=list`` shows what there is).  ``bind_to``: ``none`` leaves ranks and their
        loader processes all cores of the job; another puts each rank with all of its loader
        processes on its own.  ``container``: srun's options by which this site starts each rank in
        a container, ``--container-image=... --container-mounts=...`` or ``--environment=...``.
        """
        if bind_to not in BINDINGS:
            raise SpecError(f"bind_to {bind_to!r} is not possible; allowed: {', '.join(BINDINGS)}")
        if mpi and not mpi.replace("_", "").isalnum():
            raise SpecError(f"mpi {mpi!r} is no kind of MPI; `srun --mpi=list` shows them")
        try:
            self._container = shlex.split(container)
        except ValueError as error:
            raise SpecError(f"container {container!r}: {error}") from None
        for word in self._container:
            if not _CONTAINER.fullmatch(word):
                raise SpecError(
                    f"container: {word!r} is no option that starts a container; allowed: "
                    "--container-...=..., --environment=..."
                )
        self._mpi, self._bind_to = mpi, bind_to

    def available(self) -> str:
        """Return "" when srun is on PATH, else the reason with the remedy."""
        if shutil.which("srun") is None:
            return "no program srun: this is no node of a Slurm cluster; use launcher mpirun"
        return ""

    def argv(self, command: Sequence[str], ranks: Ranks) -> List[str]:
        """Return ``srun ... command``.

        A step shares the job's cores with the agents' step, which waits.  ``forward``: srun gives
        ranks the whole environment by itself.
        """
        words = ["srun", "--overlap", f"--ntasks={ranks.count}"]
        if ranks.hosts:
            words += [f"--nodes={len(ranks.hosts)}", f"--ntasks-per-node={ranks.on_each}"]
            words += [f"--nodelist={','.join(ranks.hosts)}", "--distribution=block"]
        else:  # all on the job's first node, where the driver is, whatever others it has
            words += ["--nodes=1", "--relative=0"]
        words += [f"--cpu-bind={self._bind_to}", "--kill-on-bad-exit=1", "--export=ALL"]
        words += [f"--mpi={self._mpi}"] if self._mpi else []
        return [*words, *([] if ranks.outside else self._container), *command]


def failure(text: str) -> Optional[Failure]:
    """Return the rank that srun reports to have failed first; None if it reports none."""
    output = "\n".join(line for line in text.splitlines() if not line.startswith(_OWN))
    for rank, how in _TASK.findall(text):
        if exited := _EXITED.match(how):
            return Failure(int(rank), int(exited[1]), output)
        number = _SIGNALS.get(how.partition(" (")[0])
        if number:
            return Failure(int(rank), -number, output)
    return None


def judge(case: Case) -> None:
    """Raise SpecError for a container of iobench's inside one of srun's."""
    if case.launcher_options.get("container") and registry.form_of(case):
        raise SpecError(
            f"launcher_options.container already starts each rank in a container, and runtime "
            f"{case.runtime!r} would start another in it; use runtime 'bare'"
        )


BACKEND = LauncherBackend(
    SRun,
    "ranks as a step of a Slurm job, by srun",
    across={},
    passed=("SLURM_", "PMIX_", "PMI_"),
    failure=failure,
    judge=judge,
)
