"""What launchers of several nodes share."""

from __future__ import annotations

from iobench.core import registry, trusted
from iobench.core.cases import Case


def judge(case: Case) -> None:
    """Raise SpecError for a ``program`` on this host that a spec may not have run."""
    program = case.launcher_options.get("program")
    starts_here = case.nodes > 1 or not registry.load("runtimes", case.runtime).isolated
    if program is not None and starts_here:
        trusted.check_program(str(program), "launcher_options.program")
