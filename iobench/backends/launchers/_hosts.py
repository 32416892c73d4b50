"""What launchers of several nodes share."""

from __future__ import annotations

from typing import Mapping

from iobench.core import registry, trusted
from iobench.core.cases import Case

#: In a job of Slurm mpirun and Hydra start their daemons by srun, which would wait for the cores of
#: the step that the agents are, until the suite's end.
IN_A_JOB: Mapping[str, str] = {"SLURM_OVERLAP": "1"}


def judge(case: Case) -> None:
    """Raise SpecError for a ``program`` on this host that a spec may not have run."""
    program = case.launcher_options.get("program")
    starts_here = case.nodes > 1 or not registry.load("runtimes", case.runtime).isolated
    if program is not None and starts_here:
        trusted.check_program(str(program), "launcher_options.program")
