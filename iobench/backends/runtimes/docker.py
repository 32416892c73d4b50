"""Docker: a daemon starts the container; root, or a member of its group, asks it to."""

from __future__ import annotations

import dataclasses
import os
import shutil
from typing import List, Mapping, Sequence

from iobench import containers
from iobench.containers import ask, asked_once, docker_maps, host, oci_run
from iobench.model import Scalar
from iobench.protocols import Runtime, RuntimeBackend, Start

_FORMAT = "{{.Server.Version}} {{.Client.Version}}"


class Docker:
    """Runs a command in a container of the daemon that DOCKER_HOST names, else the machine's."""

    def __init__(self, shm_mb: int, label: str) -> None:
        self._shm_bytes, self._label = containers.shm_of(shm_mb), label

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
        code, said = ask(["docker", "version", "--format", _FORMAT])
        if code == 0:
            return ""
        if "permission denied" in said.lower():
            return "the docker daemon's socket is closed to this user: join the group docker"
        return f"the docker daemon does not answer ({said}): start it (`systemctl start docker`)"

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
        words = oci_run(self._sized(start), facts, user=user, gpu=["--gpus=all"])
        extra = [f"--group-add={group}" for group in facts.groups if maps != "rootless"]
        extra += ["--userns=host"] if maps == "userns" else []
        extra += [f"--security-opt=label={self._label}"] if self._label else []
        return ["docker", words[0], *extra, *words[1:], *command]

    def _sized(self, start: Start) -> Start:
        return dataclasses.replace(start, shm_bytes=start.shm_bytes or self._shm_bytes)

    def identify(self, image: str) -> Mapping[str, Scalar]:
        """Return the daemon's and the client's version, the storage driver, rootless or not."""
        server, _, client = asked_once("docker", "version", "--format", _FORMAT)[1].partition(" ")
        driver = asked_once("docker", "info", "--format", "{{.Driver}}")[1]
        return {
            "program": "docker",
            "version": server,
            "client": client,
            "mounted": driver,
            "rootless": docker_maps() == "rootless",
        }

    def stop(self, name: str) -> None:
        """Kill and remove the container of that name, if there is one."""
        ask(["docker", "rm", "--force", "--volumes", name])


def make(*, shm_mb: int = 0, label: str = "") -> Runtime:
    """Return the runtime.

    ``shm_mb``: size of /dev/shm in MiB (0: the host's).  ``label``: SELinux, as in
    ``--security-opt label=...`` (``disable`` lets a container read files that are not labelled for
    containers).
    """
    return Docker(shm_mb, label)


def limits() -> str:
    """Return "": the daemon enforces cpus and memory."""
    return ""


BACKEND = RuntimeBackend(
    make=make, summary="a Docker container, without network or capabilities", isolated=True,
    limits=limits,
    no_overlay="its writable layer begins empty in every trial's container; 'image' puts the data "
    "into the layer below",
)  # fmt: skip
