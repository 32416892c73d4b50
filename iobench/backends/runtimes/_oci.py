"""How a start is written: what several runtimes share."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, List, Literal, Sequence, get_args

from iobench.core import registry
from iobench.core.cases import Case
from iobench.core.errors import SpecError
from iobench.core.inside import WORK_INSIDE
from iobench.core.options import Range
from iobench.core.protocols import Mount, Runtime, Say, Start
from iobench.host import engines
from iobench.host.probes import Host, ask

MiB = Annotated[int, Range(0, (1 << 30) - 1)]
Networks = Literal["none", "host"]
Spaces = Literal["private", "host"]
#: Root inside may write these though it has no capability: the files belong to root.
KERNEL_FILES = ("/proc/sys", "/sys")
#: Why docker and podman lay nothing over their images.
NO_OVERLAY = (
    "its writable layer begins empty in every trial's container; 'image' puts the data into the "
    "layer below"
)


class OciRuntime(Runtime):
    """What docker and podman share: the options of ``run``."""

    def __init__(
        self,
        *,
        shm_mb: MiB = 0,
        label: str = "",
        network: Networks = "none",
        ipc: Spaces = "private",
        pid: Spaces = "private",
    ) -> None:
        """``shm_mb``: size of /dev/shm in MiB (0: the host's).  ``label``: SELinux, as in
        ``--security-opt label=...`` (``disable`` lets a container read files that are not labelled
        for containers).  ``network``, ``ipc``, ``pid``: none and the container's own, or the
        host's, which ranks in several containers need.  Raises SpecError for a value that cannot
        be.
        """
        if not 0 <= shm_mb < 1 << 30:
            raise SpecError(f"shm_mb {shm_mb} is no size of /dev/shm; write MiB, or 0: the host's")
        if label and not re.fullmatch(r"[a-z]+(:[\w.,:-]+)?", label):
            raise SpecError(f"label {label!r} is none of SELinux; write disable, or type:NAME")
        chosen = {"network": network, "ipc": ipc, "pid": pid}
        for name, value in chosen.items():
            allowed = get_args(Networks if name == "network" else Spaces)
            if value not in allowed:
                raise SpecError(f"{name} {value!r} is not possible; allowed: {', '.join(allowed)}")
        if shm_mb and ipc == "host":
            raise SpecError("shm_mb has no effect with ipc = 'host': /dev/shm is the host's own")
        self._shm_bytes, self._label = shm_mb << 20, label
        self._network = network
        #: What the container has in common with the host, by option.
        self.shared = {name: value for name, value in chosen.items() if value == "host"}

    def program(self) -> List[str]:
        """Return the engine's program with the options that every call of it needs."""
        raise NotImplementedError

    def run(
        self,
        command: Sequence[str],
        start: Start,
        facts: Host,
        extra: Sequence[str],
        *,
        user: str,
        gpu: str,
    ) -> List[str]:
        """Return the command that runs ``command``; ``gpu``: the option that shows the GPUs.

        No capability, no new privilege, no network, nothing writable but /tmp and the mounts that
        say so; the limits, the name and the shared memory of the host.  With ``start.passed`` the
        name, the node's own and the variables are known only where a launcher starts this.
        """
        words = [*extra]
        words += [f"--security-opt=label={self._label}"] if self._label else []
        words += ["--rm", "--pull=never", "--log-driver=none", f"--label={engines.owner()}"]
        if not start.passed:
            words += [f"--name={start.name}"] if start.name else []
            words += [f"--hostname={facts.name}"]
        words += [
            f"--user={user}",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            "--read-only",
            f"--network={self._network}",
            "--tmpfs=/tmp:rw,exec,nosuid,nodev,mode=1777",
            f"--ulimit=nofile={facts.open_files[0]}:{facts.open_files[1]}",
            "--ulimit=core=0:0",
        ]
        words += [f"--{name}=host" for name in ("ipc", "pid") if name in self.shared]
        shm_bytes = start.shm_bytes or self._shm_bytes or facts.shm_bytes
        words += [f"--shm-size={shm_bytes}"] if shm_bytes and "ipc" not in self.shared else []
        words += [f"--cpus={start.cpus:g}"] if start.cpus else []
        if start.memory_bytes:  # without swap: else a limit only moves pages out
            words += [f"--memory={start.memory_bytes}", f"--memory-swap={start.memory_bytes}"]
        words += [gpu] if start.gpus else []
        words += [f"--mount={_mount_option(mount)}" for mount in start.mounts]
        words += [f"--env={name}={value}" for name, value in start.env.items()]
        words += [*workdir("--workdir={}", start), "--entrypoint=", start.image, *command]
        engine = [*self.program(), "run"]
        return [*_started_there(engine, start), *words] if start.passed else [*engine, *words]

    def lacks(self, image: str) -> str:
        """Return "" when the engine of this node holds the image, else the reason."""
        inspect = [*self.program(), "image", "inspect", "--format", "{{.Id}}", image]
        if ask(inspect)[0] == 0:
            return ""
        engine = self.program()[0]
        return f"{engine} has no image {image}: `{engine} load -i` its archive there"

    def remove(self, containers: Sequence[str]) -> None:
        """Kill and remove containers."""
        raise NotImplementedError

    def stop(self, name: str) -> None:
        """Kill and remove the containers that were started by that name."""
        if found := self.names(name):
            self.remove(found)

    def sweep(self, say: Say) -> None:
        """Remove the containers and images of drivers of this machine that are gone."""
        for kind in ("container", "image"):
            if found := engines.left(self.program(), kind):
                say(f"removing what a driver that was killed left: {kind} {', '.join(found)}")
                if kind == "container":
                    self.remove(found)
                else:
                    ask([*self.program(), "rmi", "--force", *found])

    def names(self, name: str) -> List[str]:
        """Return the containers that were started by this name, alive or not."""
        wanted = [*self.program(), "ps", "--all", "--quiet", f"--filter=name=^{name}"]
        code, output = ask(wanted)
        return [] if code else output.split()


def apart(case: Case) -> str:
    """Return what keeps ranks in several containers from one another; "" where nothing does."""
    together = registry.scope_of(case) == "rank" and case.ranks_per_node > 1
    wanted = ("network", "ipc", "pid") if together else ("network",)
    if all(case.runtime_options.get(name) == "host" for name in wanted):
        return ""
    options = ", ".join(f"{name} = 'host'" for name in wanted)
    return f"keeps each from the others: set runtime_options = {{ {options} }}, which is recorded"


def passing(beginnings: Sequence[str], written: str) -> str:
    """Return a shell command that prints ``written`` for each variable of these beginnings.

    In ``written``, as in a replacement of sed, ``\\1`` is the variable's name.
    """
    name = f"({'|'.join(beginnings)})[A-Za-z0-9_]*"
    return f"env | sed -nE 's/^({name})=.*/{written}/p'"


def _started_there(engine: Sequence[str], start: Start) -> List[str]:
    """Return words that start a container under a name of its own on whichever node they run.

    The name ends with the shell's process id; torchrun would take ``$$`` for a ``$``.
    """
    shown, own = passing(start.passed, r"--env=\1"), "$(sh -c 'echo $PPID')"
    script = f'exec {shlex.join(engine)} --name={start.name}-{own} --hostname="$(uname -n)" '
    script += f'$({shown}) "$@"'
    return ["/bin/sh", "-c", script, "sh"]


def _mount_option(mount: Mount) -> str:
    """Return a ``--mount`` value of docker and podman (comma-separated, quoted as CSV is)."""
    fields = ["type=bind", f"source={mount.host}", f"target={mount.inside}"]
    fields += [] if mount.writable else ["readonly"]
    special = re.compile('[,"\n]')
    return ",".join('"' + f.replace('"', '""') + '"' if special.search(f) else f for f in fields)


def workdir(option: str, start: Start) -> List[str]:
    """Return the words that begin in the work folder, where it is shown at its place."""
    shown = any(mount.inside == WORK_INSIDE for mount in start.mounts)
    return [option.format(WORK_INSIDE)] if shown else []


def inner_env(start: Start, *flags: str) -> List[str]:
    """Return ``env NAME=value ...`` to put before the command inside.

    For runtimes whose own options split values at commas or keep HOME for themselves.
    """
    return ["/usr/bin/env", *flags, *(f"{k}={v}" for k, v in start.env.items())]
