"""Jobs of a batch system: what is asked of one, and how it is spoken to."""

from __future__ import annotations

import dataclasses
from typing import List, Mapping, NamedTuple, Protocol, Tuple

QUEUED, RUNNING, ENDED, UNKNOWN = "queued", "running", "ended", "unknown"


@dataclasses.dataclass(frozen=True)
class JobRequest:
    """What a job asks for; "" and 0: the site's default.

    ``ranks``: processes that a launcher may start on each node.  ``cores``: of each node; 0: whole
    nodes, which nobody else uses meanwhile.  ``time_s``: its limit.  ``log``: file for what the
    batch system itself has to say, which may be replaced each time.  ``extra``: further directives,
    without the system's mark.  ``elements``: of an array; 0: it is a single job.
    """

    name: str
    nodes: int
    ranks: int
    time_s: int
    log: str = ""
    cores: int = 0
    queue: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    extra: Tuple[str, ...] = ()
    elements: int = 0


class JobState(NamedTuple):
    """``state``: QUEUED, RUNNING, ENDED or UNKNOWN; ``words``: what the batch system says of it."""

    state: str
    words: str


class Scheduler(Protocol):
    """A batch system."""

    def available(self) -> str:
        """Return "" when jobs can be submitted from here, else the reason with the remedy."""
        return ""

    def directives(self, job: JobRequest) -> List[str]:
        """Return the lines at the top of a script that ask for ``job``; pure.

        Raises SpecError for what this batch system cannot be asked for.
        """

    def submission(self, script: str, element: int = 0) -> List[str]:
        """Return the command that submits a script; pure.

        ``element``: of its array, that one alone; 0: as the script says.
        """

    def number(self, output: str) -> str:
        """Return the job's number from what :meth:`submission` printed; "" where none is in it."""

    def state(self, job: str) -> JobState:
        """Ask how a job is."""

    def hosts(self, env: Mapping[str, str]) -> List[str]:
        """Return the hosts of the job that has this environment, in its order; [] outside of one.

        Raises BackendUnavailable where they cannot be listed.
        """
