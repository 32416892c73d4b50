"""Slurm: sbatch, squeue, sacct."""

from __future__ import annotations

import re
import shlex
from typing import List, Mapping

from iobench.backends.schedulers._common import clock, missing
from iobench.core.errors import BackendUnavailable
from iobench.core.jobs import ENDED, QUEUED, RUNNING, UNKNOWN, JobRequest, JobState
from iobench.core.members import SchedulerBackend
from iobench.host import probes

_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
_ACTIVE = {"RUNNING", "COMPLETING", "STAGE_OUT", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING"}
#: What a job waits for that seldom comes by itself (squeue(1), reasons) -> what to do.
_ASK_LESS = {
    "PartitionConfig": "no such nodes in this partition: fewer --nodes, --cores or ranks a node",
    "PartitionNodeLimit": "fewer --nodes, another --partition, or nodes are down (`sinfo`)",
    "PartitionTimeLimit": "a shorter --time, or another --partition",
    "PartitionInactive": "another --partition",
    "BadConstraints": "no node has it: another --constraint or --partition",
    "InvalidAccount": "another --account",
    "InvalidQOS": "another --qos",
}


class Slurm:
    """Submits by sbatch."""

    def available(self) -> str:
        """Return "" when sbatch is on PATH, else the reason with the remedy."""
        return missing("sbatch", "a Slurm cluster")

    def directives(self, job: JobRequest) -> List[str]:
        """Return the ``#SBATCH`` lines.

        A job that is killed for another, or whose node fails, goes back into the queue.  Elements
        of an array run one at a time: they would make the same data, and share its storage.
        """
        words = [
            f"--job-name={job.name}",
            f"--nodes={job.nodes}",
            f"--ntasks-per-node={job.ranks}",
            f"--cpus-per-task={-(-job.cores // job.ranks)}" if job.cores else "--exclusive",
            f"--time={clock(job.time_s)}",
            f"--output={job.log.replace('%', '%%')}",
            "--open-mode=append",
            "--requeue",
        ]
        asked = {
            "partition": job.queue,
            "account": job.account,
            "qos": job.qos,
            "constraint": job.constraint,
            "array": f"1-{job.elements}%1" if job.elements else "",
        }
        words += [f"--{name}={value}" for name, value in asked.items() if value]
        return [f"#SBATCH {shlex.quote(word)}" for word in words] + [
            f"#SBATCH {line}" for line in job.extra
        ]

    def submission(self, script: str, element: int = 0) -> List[str]:
        """Return ``sbatch --parsable ... script``."""
        only = [f"--array={element}"] if element else []
        return ["sbatch", "--parsable", *only, script]

    def number(self, output: str) -> str:
        """Return the number from ``number[;cluster]``, which may follow a site's greetings."""
        found = re.findall(r"^(\d+)(?:;.*)?$", output, re.MULTILINE)
        return found[-1] if found else ""

    def state(self, job: str) -> JobState:
        """Ask squeue, and sacct for a job that it has forgotten."""
        live = ["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T|%r|%L|%N"]
        code, output = probes.ask(live)
        if not code and output:
            name, why, left, nodes = (output.splitlines()[0].split("|") + [""] * 4)[:4]
            if name in _WAITING:
                remedy = f"; {_ASK_LESS[why]}" if why in _ASK_LESS else ""
                return JobState(QUEUED, f"{name} ({why}){remedy}")
            if name in _ACTIVE:
                return JobState(RUNNING, f"{name} on {nodes}, {left} left")
            return JobState(ENDED, name)
        past = ["sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job}"]
        code, output = probes.ask([*past, "--format=State,ExitCode,Elapsed,NodeList"])
        if code or not output or "|" not in output:
            return JobState(UNKNOWN, "Slurm no longer knows it")
        name, status, took, nodes = (output.splitlines()[-1].split("|") + [""] * 4)[:4]
        first = name.split(" ")[0]  # CANCELLED by 1000
        state = QUEUED if first in _WAITING else RUNNING if first in _ACTIVE else ENDED
        return JobState(state, f"{name}, exit status {status}, after {took} on {nodes}")

    def hosts(self, env: Mapping[str, str]) -> List[str]:
        """Return SLURM_JOB_NODELIST, expanded by scontrol."""
        listed = env.get("SLURM_JOB_NODELIST")
        if not listed:
            return []
        code, output = probes.ask(["scontrol", "show", "hostnames", listed])
        if code:
            raise BackendUnavailable(
                f"`scontrol show hostnames {listed}` failed ({output}): name the hosts by --hosts"
            )
        return output.split()


BACKEND = SchedulerBackend(
    Slurm,
    "Slurm, by sbatch",
    number="SLURM_JOB_ID",
    element="SLURM_ARRAY_TASK_ID",
    again='scontrol requeue "$SLURM_JOB_ID"',
)
