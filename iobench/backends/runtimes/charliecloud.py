"""Charliecloud: an unpacked folder in a user namespace, and nothing else."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import List, Mapping, Sequence

from iobench.backends.runtimes import _oci, _readonly
from iobench.backends.runtimes._oci import inner_env, workdir
from iobench.core.cases import Scalar
from iobench.core.errors import SpecError
from iobench.core.inside import PATH_INSIDE
from iobench.core.members import RuntimeBackend
from iobench.core.protocols import Runtime, Start
from iobench.host import probes
from iobench.host.probes import asked_once


class Charliecloud(Runtime):
    """Runs a command by ``ch-run``, as the calling user.

    ``ch-run`` binds folders writable: those that shall not be are made read-only before it, in a
    mount namespace of its own.  /dev and /proc are the host's, so GPUs are seen as they are; their
    libraries must be in the image (``ch-fromhost``).
    """

    def available(self) -> str:
        """Return "" when there is ch-run and user namespaces are on, else reason and remedy."""
        if shutil.which("ch-run") is None:
            return "no program ch-run: install Charliecloud (Debian: charliecloud)"
        return probes.user_namespaces()

    def form(self) -> str:
        """Return ``rootfs``: an unpacked folder."""
        return "rootfs"

    def argv(self, command: Sequence[str], start: Start) -> List[str]:
        """Return ``ch-run ... command``.  Raises SpecError for a path that ``-b`` cannot say."""
        words = ["env", f"USER={os.environ.get('USER') or f'uid{os.geteuid()}'}"]
        fixed = [start.image] if start.image else []
        fixed += [str(mount.host) for mount in start.mounts if not mount.writable]
        if os.geteuid() == 0:
            fixed += _oci.KERNEL_FILES
        if fixed:
            words += [sys.executable, "-I", "-S", str(Path(_readonly.__file__)), *fixed, "--"]
        words += ["ch-run", "--private-tmp", "--no-passwd"]
        for mount in start.mounts:
            if ":" in f"{mount.host}{mount.inside}":
                raise SpecError(
                    f"{mount.host}: ch-run -b cannot say a path with ':': move the data, or use "
                    "docker or podman"
                )
            words.append(f"--bind={mount.host}:{mount.inside}")
        words += workdir("--cd={}", start)
        inside = [*inner_env(start, "-i", f"PATH={PATH_INSIDE}"), *command]
        return [*words, start.image, "--", *inside]

    def identify(self, image: str) -> Mapping[str, Scalar]:
        """Return the version and how the image is mounted."""
        _, output = asked_once("env", "USER=root", "ch-run", "--version")
        return {
            "program": "ch-run",
            "version": output.splitlines()[0].split()[-1] if output else "",
            "mounted": "plain directory" if os.path.isdir(image) else "squashfuse",
            "rootless": os.geteuid() != 0,
        }


BACKEND = RuntimeBackend(
    Charliecloud, "Charliecloud: an unpacked folder in a user namespace", isolated=True,
    no_overlay="ch-run lays nothing but memory over an image; 'image' puts the data into the tree",
)  # fmt: skip
