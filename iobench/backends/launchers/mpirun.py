"""Open MPI's mpirun: several ranks on one node, started where they run, or on several nodes.

On one node the mpirun of the stack that the case runs in is put inside its container, so one
version of MPI starts the ranks and links them, and a container with neither network nor
capabilities is enough.  On several nodes it stands outside and starts a container a rank.  Ranks
that use no MPI (null, emulated) are started the same way.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import socket
from typing import List, Literal, Mapping, Optional, Sequence, get_args

from iobench.backends.launchers import _hosts
from iobench.core.errors import SpecError
from iobench.core.members import Failure, LauncherBackend
from iobench.core.protocols import Launcher, Ranks
from iobench.host.probes import asked_once

Bindings = Literal["none", "hwthread", "core", "socket", "numa"]
BINDINGS = get_args(Bindings)
RANK, SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"
#: One host's ranks talk through shared memory, and look for no fabric.  "none": the kernel's single
#: copy (process_vm_readv) needs ptrace, which containers forbid; every arm shall copy alike.  plm,
#: ras: this node alone, whatever a batch system has allocated beside it (srun is in no container).
QUIET: Mapping[str, str] = {
    "OMPI_MCA_plm": "isolated",
    "OMPI_MCA_ras": "^slurm,tm,lsf,gridengine,alps",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,vader,tcp",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
}
#: On several nodes it talks by what the site has set up.  Ranks of one node that are in user
#: namespaces of their own (Apptainer's) may not copy from one another; every arm shall copy alike.
#: oob: its daemon on a node that has lost this one ends after 40 s, not after eight minutes; later
#: than the driver has seen it, which knows the ranks.
ACROSS: Mapping[str, str] = {
    **_hosts.IN_A_JOB,
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_oob_tcp_keepalive_time": "10",
    "OMPI_MCA_oob_tcp_keepalive_intvl": "10",
    "OMPI_MCA_oob_tcp_keepalive_probes": "3",
}
#: mpirun's own words stand between two such lines.
_RULE = re.compile(r"^-{60,}\s*$", re.MULTILINE)
_KILLED = re.compile(r"process rank (\d+) with PID \d+ on node\s+\S+\s+exited on\s+signal (\d+)")
_LOST = re.compile(
    r"lost communication with a remote daemon.*?Remote daemon:.*? on node (\S+)", re.S
)
_STATUS = re.compile(r"Process name:\s+\[\S*,(\d+)\]\s+Exit code:\s+(\d+)")
_IMPROPER = re.compile(r"process rank (\d+) with PID \d+ on\s+node \S+ exiting\s+improperly")
#: A rank's MPI library on a signal: ``[node:pid] *** Process received signal ***``, a backtrace.
_TRACE = re.compile(r"\[\S+:\d+\] ")


class MpiRun(Launcher):
    """Starts ranks on this node by Open MPI."""

    rank_variables = (RANK, SIZE, LOCAL_RANK)

    def __init__(
        self, *, program: str = "mpirun", bind_to: Bindings = "none", oversubscribe: bool = True
    ) -> None:
        """``program``: mpirun's name or path, where the ranks run.  ``bind_to``: ``none`` leaves
        ranks and their loader processes to the scheduler; ``core`` puts a rank with all its loader
        processes on one core.  ``oversubscribe``: more ranks than cores may start.
        """
        if bind_to not in BINDINGS:
            raise SpecError(f"bind_to {bind_to!r} is not possible; allowed: {', '.join(BINDINGS)}")
        if not program or program.startswith("-") or not program.isprintable():
            raise SpecError(f"program {program!r} is no name of a program; leave it out: mpirun")
        self._program, self._bind_to, self._oversubscribe = program, bind_to, oversubscribe

    def available(self) -> str:
        """Return "" when an Open MPI is on PATH, else the reason with the remedy."""
        if shutil.which(self._program) is None:
            return (
                f"no program {self._program}: install Open MPI (Debian: openmpi-bin) or load its "
                "module; cases of stack caffe bring their own"
            )
        code, output = asked_once(self._program, "--version")
        if code or "Open MPI" not in output:
            first = output.splitlines()[0] if output else f"exit status {code}"
            return f"{self._program} is not Open MPI's ({first}): put Open MPI's first on PATH"
        return ""

    def argv(self, command: Sequence[str], ranks: Ranks) -> List[str]:
        """Return ``mpirun ... command``, for root too (a container's only user may be root)."""
        words = [self._program, "--allow-run-as-root"]
        words += ["--oversubscribe"] if self._oversubscribe else []
        if ranks.hosts:
            words += ["--host", ",".join(f"{host}:{ranks.on_each}" for host in ranks.hosts)]
            words += ["--map-by", f"ppr:{ranks.on_each}:node"]
        words += ["--bind-to", self._bind_to, "-np", str(ranks.count)]
        return [*words, *(word for name in ranks.forward for word in ("-x", name)), *command]


def failure(text: str) -> Optional[Failure]:
    """Return the rank that mpirun reports to have failed first; None if it reports none."""
    parts = _RULE.split(text)
    lines = (line for part in parts[0::2] for line in part.splitlines())
    output = "\n".join(line for line in lines if line.strip() and not _TRACE.match(line))
    for words in parts[1::2]:
        if killed := _KILLED.search(words):
            return Failure(int(killed[1]), -int(killed[2]), output)
        if ended := _STATUS.search(words):
            return Failure(int(ended[1]), int(ended[2]), output)
        if improper := _IMPROPER.search(words):
            return Failure(int(improper[1]), 1, output)
    return None


def lost(text: str) -> str:
    """Return the node that mpirun reports to have lost; "" if it reports none."""
    found = _LOST.search(text)
    return found[1] if found else ""


def leaves(process: int) -> Sequence[str]:
    """Return the session folder of an mpirun: one that is killed does not remove it."""
    host = glob.escape(socket.gethostname().partition(".")[0])
    return (f"ompi.{host}*.{os.geteuid()}/pid.{process}",)


BACKEND = LauncherBackend(
    MpiRun,
    "several ranks on one node or several, by Open MPI's mpirun",
    inside=True,
    stacks=frozenset({"caffe"}),
    variables=QUIET,
    across=ACROSS,
    passed=("OMPI_", "PMIX_"),
    failure=failure,
    lost=lost,
    leaves=leaves,
    judge=_hosts.judge,
)
