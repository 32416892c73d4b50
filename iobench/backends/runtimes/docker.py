"""Docker: a daemon starts the container; root, or a member of its group, asks it to."""

from __future__ import annotations

import os
import shutil
from typing import List, Mapping, Sequence

from iobench.backends.runtimes._oci import NO_OVERLAY, OciRuntime, apart
from iobench.core.cases import Scalar
from iobench.core.members import RuntimeBackend
from iobench.core.protocols import Start
from iobench.host import engines
from iobench.host.engines import docker_maps
from iobench.host.probes import ask, asked_once, host

_FORMAT = "{{.Server.Version}} {{.Client.Version}}"


class Docker(OciRuntime):
    """Runs a command in a container of the daemon that DOCKER_HOST names, else the machine's."""

    def available(self) -> str:
        """Return "" when a daemon answers, else the reason with the remedy."""
        if shutil.which("docker") is None:
            return "no program docker: install it (Debian: docker.io), or use apptainer or podman"
        address = os.environ.get("DOCKER_HOST", "")
        if address and not address.startswith("unix:"):
            return (
                f"DOCKER_HOST={address} is another machine's daemon, which sees none of this one's "
                "files: unset it"
            )
        code, output = ask(["docker", "version", "--format", _FORMAT])
        if code == 0:
            return ""
        if "permission denied" in output.lower():
            return "the docker daemon's socket is closed to this user: join the group docker"
        return f"the docker daemon does not answer ({output}): start it (`systemctl start docker`)"

    def form(self) -> str:
        """Return ``docker``: an image that the daemon holds."""
        return "docker"

    def argv(self, command: Sequence[str], start: Start) -> List[str]:
        """Return ``docker run ... IMAGE command``: the caller's user, without any capability.

        A rootless daemon is the caller's own: user 0 inside is the caller, who is nobody else
        outside, and other groups cannot be had.  A daemon that remaps users is asked not to.
        """
        facts, maps = host(), docker_maps()
        user = "0:0" if maps == "rootless" else f"{facts.uid}:{facts.gid}"
        extra = [f"--group-add={group}" for group in facts.groups if maps != "rootless"]
        extra += ["--userns=host"] if maps == "userns" else []
        return self.run(command, start, facts, extra, user=user, gpu="--gpus=all")

    def identify(self, image: str) -> Mapping[str, Scalar]:
        """Return the daemon's and the client's version, the storage driver, rootless or not."""
        server, _, client = asked_once("docker", "version", "--format", _FORMAT)[1].partition(" ")
        driver = asked_once("docker", "info", "--format", "{{.Driver}}")[1]
        return {
            "program": "docker",
            "version": server,
            "client": client,
            "mounted": driver,
            "store": engines.store_filesystem("docker"),
            "rootless": docker_maps() == "rootless",
            **self.shared,
        }

    def remove(self, containers: Sequence[str]) -> None:
        """Kill and remove containers, stopped or not."""
        ask([*self.program(), "rm", "--force", "--volumes", *containers])

    def program(self) -> List[str]:
        """Return ``docker``."""
        return ["docker"]


BACKEND = RuntimeBackend(
    Docker, "a Docker container, without network or capabilities", isolated=True,
    limits=lambda: "", no_overlay=NO_OVERLAY, apart=apart,
)  # fmt: skip
