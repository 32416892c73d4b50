"""The image's files on the host, no container: what differs from bare is the software alone."""

from __future__ import annotations

import os
import platform
from typing import List, Mapping, Sequence

from iobench.core.cases import Scalar
from iobench.core.inside import PYTHON_INSIDE
from iobench.core.members import RuntimeBackend
from iobench.core.protocols import Runtime, Start
from iobench.host import probes
from iobench.host.probes import asked_once

#: Variables that would lead the image's Python to the host's packages or libraries.
LEAKS = ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class Unpacked(Runtime):
    """Runs a command on the host; the driver takes the interpreter of the unpacked image."""

    def form(self) -> str:
        """Return ``rootfs``: an unpacked folder."""
        return "rootfs"

    def argv(self, command: Sequence[str], start: Start) -> List[str]:
        """Return the command in an environment without the host's Python and its libraries."""
        unset = [word for name in LEAKS for word in ("-u", name)]
        return ["env", *unset, *(f"{k}={v}" for k, v in start.env.items()), *command]

    def lacks(self, image: str) -> str:
        """Return "" when the image is on this node, else the reason."""
        return probes.absent(image)

    def identify(self, image: str) -> Mapping[str, Scalar]:
        """Return the host's C library, a confounder, and why the image's Python cannot use it."""
        facts = {"mounted": "plain directory", "libc": " ".join(platform.libc_ver())}
        python = f"{image.rstrip('/')}{PYTHON_INSIDE}"
        if not image or not os.path.exists(python):
            return facts
        code, output = asked_once(python, "-I", "-c", "import ctypes, ssl")
        return facts if code == 0 else {**facts, "cannot_run": output}


BACKEND = RuntimeBackend(Unpacked, summary="the image's files on the host, no container")
