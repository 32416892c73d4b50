"""OpenPBS and PBS Professional: qsub, qstat."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import List, Mapping

from iobench.backends.schedulers._common import clock, missing, refuse
from iobench.core.errors import BackendUnavailable
from iobench.core.jobs import ENDED, QUEUED, RUNNING, UNKNOWN, JobRequest, JobState
from iobench.core.members import SchedulerBackend
from iobench.host import probes

_STATES = {"R": RUNNING, "E": RUNNING, "B": RUNNING, "S": RUNNING, "U": RUNNING}
_STATES.update({"F": ENDED, "X": ENDED, "C": ENDED})


class Pbs:
    """Submits by qsub."""

    def available(self) -> str:
        """Return "" when qsub is on PATH, else the reason with the remedy."""
        return missing("qsub", "a PBS cluster")

    def directives(self, job: JobRequest) -> List[str]:
        """Return the ``#PBS`` lines; a constraint is a resource of each chunk, ``name=value``."""
        refuse(job, "PBS", "qos")
        chunk = [f"{job.nodes}", f"mpiprocs={job.ranks}"]
        chunk += [f"ncpus={job.cores}"] if job.cores else []
        chunk += [job.constraint] if job.constraint else []
        options = {
            "-N": job.name,
            "-l select=": ":".join(chunk),
            "-l place=": "scatter" if job.cores else "scatter:excl",
            "-l walltime=": clock(job.time_s),
            "-j": "oe",
            "-o": job.log,
            "-r": "y",
            "-q": job.queue,
            "-A": job.account,
        }
        words = [
            f"{name}{'' if name.endswith('=') else ' '}{shlex.quote(value)}"
            for name, value in options.items()
            if value
        ]
        return [f"#PBS {word}" for word in (*words, *job.extra)]

    def submission(self, script: str, element: int = 0) -> List[str]:
        """Return ``qsub script``."""
        return ["qsub", script]

    def number(self, output: str) -> str:
        """Return the number from ``number.server``, which may follow a site's greetings."""
        found = re.findall(r"^(\d+(?:\[\])?\.\S+)$", output, re.MULTILINE)
        return found[-1] if found else ""

    def state(self, job: str) -> JobState:
        """Ask qstat, which keeps ended jobs for as long as the site has set."""
        code, output = probes.ask(["qstat", "-x", "-f", job])
        facts = dict(re.findall(r"^\s+(\S+) = (.*)$", output, re.MULTILINE))
        letter = facts.get("job_state", "")
        if code or not letter:
            return JobState(UNKNOWN, "PBS no longer knows it")
        status = f"exit status {facts['Exit_status']}" if "Exit_status" in facts else ""
        words = ", ".join(filter(None, [letter, facts.get("comment", ""), status]))
        return JobState(_STATES.get(letter, QUEUED), words)

    def hosts(self, env: Mapping[str, str]) -> List[str]:
        """Return the hosts in PBS_NODEFILE, each once."""
        listed = env.get("PBS_NODEFILE")
        if not listed:
            return []
        try:
            return list(dict.fromkeys(Path(listed).read_text().split()))
        except OSError as error:
            raise BackendUnavailable(
                f"PBS_NODEFILE={listed} cannot be read ({error.strerror}): name the hosts by "
                "--hosts"
            ) from None


BACKEND = SchedulerBackend(Pbs, "OpenPBS and PBS Professional, by qsub", number="PBS_JOBID")
