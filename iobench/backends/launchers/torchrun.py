"""torchrun: PyTorch's own launcher, started once a node by another one."""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
import sys
from typing import Annotated, List, Literal, Optional, Sequence, get_args

from iobench.backends.launchers import _hosts
from iobench.core import registry
from iobench.core.errors import SpecError
from iobench.core.members import Failure, LauncherBackend
from iobench.core.options import Range
from iobench.core.protocols import Launcher, Ranks

Carriers = Literal["mpirun", "srun", "hydra"]
CARRIERS = get_args(Carriers)
Port = Annotated[int, Range(1, 65_535)]
#: Each carrier numbers its processes, one a node, by one of these.
_NODE = "${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:-${PMI_RANK:-0}}}"
#: Its report of the rank that failed first; where its own lines begin; those of torch's C++ side.
_FIRST = re.compile(r"^Root Cause.*?^ +rank +: (\d+) .*?^ +exitcode +: (-?\d+)", re.M | re.S)
_REPORT = re.compile(r"^[EW]\d{4} .*torch/distributed/|^Traceback ", re.M)
_TORCH = re.compile(r"\[[EWI]\d{4} ")


class TorchRun(Launcher):
    """Starts ranks by PyTorch's elastic launcher, without restarts."""

    rank_variables = ("RANK", "WORLD_SIZE", "LOCAL_RANK")

    def __init__(self, *, by: Carriers = "mpirun", program: str = "", port: Port = 29_500) -> None:
        """``by``: the launcher that starts it on each of several nodes.  ``program``: torchrun's
        name or path ("": that of the Python that iobench runs in).  ``port``: on the first node,
        where the others find it.
        """
        if by not in CARRIERS:
            raise SpecError(f"by {by!r} is not possible; allowed: {', '.join(CARRIERS)}")
        if program.startswith("-"):
            raise SpecError(f"program {program!r} is no name of a program; leave it out")
        self.by, self._program, self._port = by, program, port

    def available(self) -> str:
        """Return "" when there is a torchrun, else the reason with the remedy."""
        if self._program:
            here = shutil.which(self._program)
            return "" if here else f"no program {self._program}: put it on PATH, or name another"
        if not registry.importable("torch"):
            return "this Python has no torch: `make setup`, or set launcher_options program"
        return ""

    def argv(self, command: Sequence[str], ranks: Ranks) -> List[str]:
        """Return ``torchrun ... command``, on several nodes after the carrier's words."""
        usual = [*(ranks.python or [sys.executable]), "-m", "torch.distributed.run"]
        words = [self._program] if self._program else usual
        words += [f"--nproc-per-node={ranks.on_each}", "--no-python", "--log-dir=/dev/null"]
        if not ranks.hosts:
            return [*words, "--standalone", *command]
        words += [f"--nnodes={len(ranks.hosts)}", f"--master-addr={ranks.hosts[0]}"]
        words += [f"--master-port={self._port}"]
        script = f'exec {shlex.join(words)} --node-rank={_NODE} "$@"'
        inner = ["/bin/sh", "-c", script, "sh", *command]
        carrier: Launcher = registry.load("launchers", self.by).make()
        each = dataclasses.replace(ranks, count=len(ranks.hosts))
        return carrier.argv(ranks.contained(inner), each)


def failure(text: str) -> Optional[Failure]:
    """Return the rank that torchrun reports to have failed first; None if it reports none."""
    found = _FIRST.search(text)
    if found is None:
        return None
    report = _REPORT.search(text)
    lines = text[: report.start() if report else 0].splitlines()
    output = "\n".join(line for line in lines if not _TORCH.match(line))
    return Failure(int(found[1]), int(found[2]), output)


BACKEND = LauncherBackend(
    TorchRun,
    "several ranks on one node or several, by PyTorch's torchrun",
    stacks=frozenset({"torch"}),
    carried=True,
    across=_hosts.IN_A_JOB,
    passed=("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_"),
    failure=failure,
    judge=_hosts.judge,
)
