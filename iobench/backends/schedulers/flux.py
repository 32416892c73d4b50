"""Flux: flux batch, flux jobs."""

from __future__ import annotations

import re
import shlex
from typing import List, Mapping

from iobench.backends.schedulers._common import missing, refuse
from iobench.core.errors import BackendUnavailable
from iobench.core.jobs import ENDED, QUEUED, RUNNING, UNKNOWN, JobRequest, JobState
from iobench.core.members import SchedulerBackend
from iobench.host import probes

_STATES = {"RUN": RUNNING, "CLEANUP": RUNNING}
_STATES.update({"COMPLETED": ENDED, "FAILED": ENDED, "CANCELED": ENDED, "TIMEOUT": ENDED})


class Flux:
    """Submits by flux batch: the job is a Flux instance of its own."""

    def available(self) -> str:
        """Return "" when flux is on PATH, else the reason with the remedy."""
        return missing("flux", "a Flux cluster")

    def directives(self, job: JobRequest) -> List[str]:
        """Return the ``# flux:`` lines; launchers take their number of ranks from the spec."""
        refuse(job, "Flux", "qos")
        words = [
            f"--job-name={job.name}",
            f"--nodes={job.nodes}",
            f"--nslots={job.nodes}",
            f"--cores-per-slot={job.cores}" if job.cores else "--exclusive",
            f"--time-limit={job.time_s}s",
            f"--output={job.log}",
        ]
        asked = {"queue": job.queue, "bank": job.account, "requires": job.constraint}
        words += [f"--{name}={value}" for name, value in asked.items() if value]
        return [f"# flux: {shlex.quote(word)}" for word in words] + [
            f"# flux: {line}" for line in job.extra
        ]

    def submission(self, script: str, element: int = 0) -> List[str]:
        """Return ``flux batch script``."""
        return ["flux", "batch", script]

    def number(self, output: str) -> str:
        """Return the job's id, the last line printed: f and base 58, or with another f."""
        found = re.findall(r"^([f\u0192]\w+)$", output, re.MULTILINE)
        return found[-1] if found else ""

    def state(self, job: str) -> JobState:
        """Ask flux jobs, which knows ended jobs too."""
        form = "--format={status}|{nodelist}"
        code, output = probes.ask(["flux", "jobs", "--no-header", form, job])
        if code or not output:
            return JobState(UNKNOWN, "Flux no longer knows it")
        name, _, nodes = output.splitlines()[-1].partition("|")
        words = f"{name} on {nodes}" if nodes else name
        return JobState(_STATES.get(name, QUEUED), words)

    def hosts(self, env: Mapping[str, str]) -> List[str]:
        """Return the hosts of the Flux instance that a job is."""
        if not env.get("FLUX_ENCLOSING_ID") and not env.get("FLUX_JOB_ID"):
            return []
        code, output = probes.ask(["flux", "hostlist", "--expand"])
        if code:
            raise BackendUnavailable(
                f"`flux hostlist --expand` failed ({output}): name the hosts by --hosts"
            )
        return list(dict.fromkeys(output.split()))


BACKEND = SchedulerBackend(
    Flux,
    "Flux, by flux batch",
    number="FLUX_ENCLOSING_ID",
    again="FLUX_URI=$(flux getattr parent-uri) SUBMIT",  # not to the job's own instance
)
