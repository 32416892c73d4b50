"""Podman: a container without a daemon, as root or as an ordinary user."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import List, Mapping, Sequence

from iobench.backends.runtimes._oci import NO_OVERLAY, MiB, Networks, OciRuntime, Spaces, apart
from iobench.core import trusted
from iobench.core.cases import Scalar
from iobench.core.members import RuntimeBackend
from iobench.core.protocols import Start
from iobench.host import engines, probes
from iobench.host.probes import ask, asked_once, host


class Podman(OciRuntime):
    """Runs a command in a container of the calling user's own storage."""

    def __init__(
        self,
        *,
        oci_runtime: str = "",
        shm_mb: MiB = 0,
        label: str = "",
        network: Networks = "none",
        ipc: Spaces = "private",
        pid: Spaces = "private",
    ) -> None:
        """``oci_runtime``: ``runc``, ``crun`` ... ("": podman's own, or runc where crun refuses
        this host's control groups).  The others: as docker's.
        """
        super().__init__(shm_mb=shm_mb, label=label, network=network, ipc=ipc, pid=pid)
        if oci_runtime:
            trusted.check_program(oci_runtime, "runtime_options.oci_runtime")
        self._oci_runtime = oci_runtime

    def available(self) -> str:
        """Return "" when podman can set up its storage here, else the reason with the remedy."""
        if shutil.which("podman") is None:
            return "no program podman: install it (Debian: podman), or use apptainer"
        if os.geteuid() != 0 and (reason := probes.user_namespaces()):
            return reason
        code, output = asked_once(*self.program(), "info", "--format", "{{.Store.GraphDriverName}}")
        return "" if code == 0 else f"podman cannot start ({output}): `podman info` says more"

    def form(self) -> str:
        """Return ``podman``: an image in the user's storage."""
        return "podman"

    def argv(self, command: Sequence[str], start: Start) -> List[str]:
        """Return ``podman run ... IMAGE command``.

        Without root the container's user 0 is the caller, who is nobody else outside and has no
        capability inside; so it needs no range of subordinate ids.
        """
        facts = host()
        user = f"{facts.uid}:{facts.gid}" if facts.uid == 0 else "0:0"
        extra = [f"--ulimit=nproc={facts.processes}:{facts.processes}"]  # podman's wish may be more
        if facts.uid == 0:
            extra += [f"--group-add={group}" for group in facts.groups]
            extra += ["--pids-limit=-1"]
        gpu = "--device=nvidia.com/gpu=all"
        return self.run(command, start, facts, extra, user=user, gpu=gpu)

    def identify(self, image: str) -> Mapping[str, Scalar]:
        """Return podman's version, its OCI runtime and storage driver, rootless or not."""
        form = "{{.Version.Version}} {{.Host.OCIRuntime.Name}} {{.Store.GraphDriverName}}"
        output = asked_once(*self.program(), "info", "--format", form)[1].split()
        version, runtime, driver = output if len(output) == 3 else ("", "", "")
        return {
            "program": "podman",
            "version": version,
            "oci_runtime": runtime,
            "mounted": driver,
            "store": engines.store_filesystem("podman"),
            "rootless": os.geteuid() != 0,
            **self.shared,
        }

    def remove(self, containers: Sequence[str]) -> None:
        """Kill and remove containers, stopped or not."""
        remove = [*self.program(), "rm", "--force", "--ignore", "--volumes"]
        if ask([*remove, "--time=0", *containers])[0]:  # podman 3 does not know it, and would wait
            ask([*self.program(), "kill", *containers])
            ask([*remove, *containers])

    def program(self) -> List[str]:
        """Return ``podman`` with the options that this host needs."""
        return engines.podman(self._oci_runtime)


def limits() -> str:
    """Return why podman would not enforce cpus and memory here; "" when it does.

    Without root it needs control groups v2 with both controllers delegated; on v1 it ignores
    ``--memory`` with no more than a warning.
    """
    if os.geteuid() == 0:
        return ""
    uid = os.getuid()
    slices = Path(f"user.slice/user-{uid}.slice/user@{uid}.service/cgroup.controllers")
    delegated = probes.read(probes.CGROUPS / slices).split()
    if {"cpu", "memory"} <= set(delegated):
        return ""
    return (
        "podman without root ignores limits where control groups v2 does not delegate cpu and "
        "memory to the user: run it as root, or leave cpus and memory out"
    )


BACKEND = RuntimeBackend(
    Podman, "a Podman container, rootless where the user is", isolated=True,
    limits=limits, no_overlay=NO_OVERLAY, apart=apart,
)  # fmt: skip
