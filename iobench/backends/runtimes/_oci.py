"""How a start is written: what several runtimes share."""

from __future__ import annotations

import re
from typing import Annotated, List, Sequence

from iobench.core.errors import SpecError
from iobench.core.inside import WORK_INSIDE
from iobench.core.options import Range
from iobench.core.protocols import Mount, Runtime, Start
from iobench.host.probes import Host

MiB = Annotated[int, Range(0, (1 << 30) - 1)]
#: Root inside may write these though it has no capability: the files belong to root.
KERNEL_FILES = ("/proc/sys", "/sys")
#: Why docker and podman lay nothing over their images.
NO_OVERLAY = (
    "its writable layer begins empty in every trial's container; 'image' puts the data into the "
    "layer below"
)


class OciRuntime(Runtime):
    """What docker and podman share: the options of ``run``."""

    def __init__(self, *, shm_mb: MiB = 0, label: str = "") -> None:
        """``shm_mb``: size of /dev/shm in MiB (0: the host's).  ``label``: SELinux, as in
        ``--security-opt label=...`` (``disable`` lets a container read files that are not labelled
        for containers).  Raises SpecError for a size that cannot be.
        """
        if not 0 <= shm_mb < 1 << 30:
            raise SpecError(f"shm_mb {shm_mb} is no size of /dev/shm; write MiB, or 0: the host's")
        if label and not re.fullmatch(r"[a-z]+(:[\w.,:-]+)?", label):
            raise SpecError(f"label {label!r} is none of SELinux; write disable, or type:NAME")
        self._shm_bytes, self._label = shm_mb << 20, label

    def run(
        self, start: Start, facts: Host, extra: Sequence[str], *, user: str, gpu: str
    ) -> List[str]:
        """Return the words from ``run`` to the image; ``gpu``: the option that shows the GPUs.

        No capability, no new privilege, no network, nothing writable but /tmp and the mounts that
        say so; the limits, the name and the shared memory of the host.
        """
        words = ["run", *extra]
        words += [f"--security-opt=label={self._label}"] if self._label else []
        words += ["--rm", "--pull=never", "--log-driver=none"]
        words += [f"--name={start.name}"] if start.name else []
        words += [
            f"--hostname={facts.name}",
            f"--user={user}",
            "--cap-drop=ALL",
            "--security-opt=no-new-privileges",
            "--read-only",
            "--network=none",
            "--tmpfs=/tmp:rw,exec,nosuid,nodev,mode=1777",
            f"--ulimit=nofile={facts.open_files[0]}:{facts.open_files[1]}",
            "--ulimit=core=0:0",
        ]
        shm_bytes = start.shm_bytes or self._shm_bytes or facts.shm_bytes
        words += [f"--shm-size={shm_bytes}"] if shm_bytes else []
        words += [f"--cpus={start.cpus:g}"] if start.cpus else []
        if start.memory_bytes:  # without swap: else a limit only moves pages out
            words += [f"--memory={start.memory_bytes}", f"--memory-swap={start.memory_bytes}"]
        words += [gpu] if start.gpus else []
        words += [f"--mount={_mount_option(mount)}" for mount in start.mounts]
        words += [f"--env={name}={value}" for name, value in start.env.items()]
        return [*words, *workdir("--workdir={}", start), "--entrypoint=", start.image]


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
