"""What launchers of several nodes share."""

from __future__ import annotations

from typing import Sequence

from iobench.core import registry, trusted
from iobench.core.cases import Case
from iobench.core.errors import SpecError


def judge(case: Case) -> None:
    """Raise SpecError for a ``program`` on this host that a spec may not have run."""
    program = case.launcher_options.get("program")
    starts_here = case.nodes > 1 or not registry.load("runtimes", case.runtime).isolated
    if program is not None and starts_here:
        trusted.check_program(str(program), "launcher_options.program")


def ranks_each(world_size: int, hosts: Sequence[str]) -> int:
    """Return how many ranks each host gets.  Raises SpecError where they cannot be shared out."""
    if world_size < 1:
        raise SpecError(f"world_size = {world_size} is no number of ranks; use 1 or more")
    if hosts and world_size % len(hosts):
        raise SpecError(
            f"world_size = {world_size} is not divisible by {len(hosts)} nodes; set ranks_per_node"
        )
    return world_size // max(len(hosts), 1)
