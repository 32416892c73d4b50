"""The image's files on the host, no container: what differs from bare is the software alone."""

from __future__ import annotations

import os
import platform
from typing import List, Mapping, Sequence

from iobench.containers import PYTHON_INSIDE, asked_once
from iobench.model import Scalar
from iobench.protocols import Runtime, RuntimeBackend, Start

#: Variables that would lead the image's Python to the host's packages or libraries.
LEAKS = ("PYTHONHOME", "PYTHONPATH", "PYTHONSTARTUP", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


class Unpacked:
    """Runs a command on the host; the driver takes the interpreter of the unpacked image."""

    def available(self) -> str:
        """Return "": a folder needs nothing (:meth:`identify` says whether its Python starts)."""
        return ""

    def form(self) -> str:
        """Return ``rootfs``: an unpacked folder."""
        return "rootfs"

    def argv(self, command: Sequence[str], start: Start) -> List[str]:
        """Return the command in an environment without the host's Python and its libraries.

        Mounts mean nothing: the host's files are seen where they are.
        """
        unset = [word for name in LEAKS for word in ("-u", name)]
        return ["env", *unset, *(f"{k}={v}" for k, v in start.env.items()), *command]

    def identify(self, image: str) -> Mapping[str, Scalar]:
        """Return the host's C library, a confounder, and why the image's Python cannot use it."""
        facts = {"mounted": "plain directory", "libc": " ".join(platform.libc_ver())}
        python = f"{image.rstrip('/')}{PYTHON_INSIDE}"
        if not image or not os.path.exists(python):
            return facts
        code, said = asked_once(python, "-I", "-c", "import ctypes, ssl")
        return facts if code == 0 else {**facts, "cannot_run": said}

    def stop(self, name: str) -> None:
        """Do nothing: the process group was all there is."""


def make() -> Runtime:
    """Return the runtime."""
    return Unpacked()


BACKEND = RuntimeBackend(make=make, summary="the image's files on the host, no container")
