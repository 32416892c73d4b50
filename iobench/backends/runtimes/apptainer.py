"""Apptainer (or Singularity): the runtime of HPC sites; a SIF file or an unpacked folder."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from pathlib import Path
from typing import List, Literal, Mapping, Optional, Sequence

from iobench.backends.runtimes import _oci
from iobench.backends.runtimes._oci import inner_env, workdir
from iobench.core.cases import Scalar
from iobench.core.errors import SpecError
from iobench.core.members import RuntimeBackend
from iobench.core.protocols import Runtime, Start
from iobench.host import probes, tools
from iobench.host.probes import asked_once

MODES = ("auto", "sif", "sandbox")
#: Settings of the user's that would show the worker more than its mounts.
_LEAKS = ("BIND", "BINDPATH", "MOUNT", "OVERLAY", "OVERLAYIMAGE", "WRITABLE_TMPFS")
#: Open MPI takes two ranks that have the same process id, each in its own container, for one, and
#: crashes: they share the node's processes and memory, as by Apptainer's defaults.
_BESIDE = ("--contain", "--bind", "/dev/shm:/dev/shm")
#: Where --nv shows the driver's libraries, and what in an image has a program look there.
DRIVER, _LOOKS_THERE = "/.singularity.d/libs", ".singularity.d/env"
#: Where a distribution's package has its configuration.
ETC = Path("/etc")
_ECL_ACTIVE = re.compile(r"^\s*activated\s*=\s*true\b", re.MULTILINE)


class Apptainer(Runtime):
    """Runs a command in an image, as the calling user, with no more than that user's rights."""

    def __init__(self, *, mode: Literal["auto", "sif", "sandbox"] = "auto") -> None:
        """``mode``: ``sif``, ``sandbox`` (the unpacked folder), or ``auto``: a SIF where one can be
        mounted.  Raises SpecError for another word.
        """
        if mode not in MODES:
            raise SpecError(f"mode {mode!r} is not possible; allowed: {', '.join(MODES)}")
        self._mode = mode

    def available(self) -> str:
        """Return "" when it can start a container here, else the reason with the remedy."""
        if not tools.apptainer():
            return (
                "no program apptainer or singularity: load the site's module, or install it "
                "(apptainer.org)"
            )
        code, output = asked_once(tools.apptainer(), "--version")
        if code:
            return f"{tools.apptainer()} does not start ({output}): put another first on PATH"
        if os.geteuid() != 0 and not _setuid() and (reason := probes.user_namespaces()):
            return reason
        if self.form() == "sif" and self._mode == "sif" and not _kernel_mounts():
            return probes.fuse() and f"{probes.fuse()}, or set mode = 'sandbox'"
        return ""

    def form(self) -> str:
        """Return ``sif``, or ``rootfs`` for an unpacked folder.

        ``auto`` takes the folder where a SIF cannot be mounted: no root, and /dev/fuse closed.
        """
        if self._mode == "auto":
            return "sif" if _kernel_mounts() or not probes.fuse() else "rootfs"
        return {"sif": "sif", "sandbox": "rootfs"}[self._mode]

    def argv(self, command: Sequence[str], start: Start) -> List[str]:
        """Return ``apptainer exec ...``.  Raises SpecError for a path that it cannot bind."""
        name = tools.apptainer() or tools.APPTAINERS[0]
        words = [*_passing(start.passed), "env"]
        for prefix in ("APPTAINER", "SINGULARITY"):
            words += [word for leak in _LEAKS for word in ("-u", f"{prefix}_{leak}")]
        words += [f"{key}={value}" for key, value in tools.apptainer_env().items()]
        words += [name, "-q", "exec", *(_BESIDE if start.of_one_rank else ["--containall"])]
        words += ["--cleanenv", "--no-home"]
        words += _gpus(start.image) if start.gpus else []
        for path in _oci.KERNEL_FILES if os.geteuid() == 0 else ():
            words += ["--bind", f"{path}:{path}:ro"]
        words += ["--bind", "/sys/fs/cgroup:/sys/fs/cgroup:ro"]  # its limits can be seen inside
        for mount in start.mounts:
            if any(c in f"{mount.host}{mount.inside}" for c in ":,\\"):
                raise SpecError(
                    f"{mount.host}: apptainer's --bind cannot say a path with ':', ',' or '\\': "
                    "move the data, or use docker or podman"
                )
            if mount.kind == "overlay":
                words += ["--overlay", f"{mount.host}:ro"]
                continue
            how = "rw" if mount.writable else "ro"
            how += f",image-src={mount.inside}" if mount.kind == "image" else ""
            words += ["--bind", f"{mount.host}:{mount.inside}:{how}"]
        words += workdir("--pwd={}", start)
        return [*words, start.image, *inner_env(start), *command]

    def lacks(self, image: str) -> str:
        """Return "" when the image is on this node, else the reason."""
        return probes.absent(image)

    def identify(self, image: str) -> Mapping[str, Scalar]:
        """Return the program, its version, how the image is mounted, rootless or not."""
        output = asked_once(tools.apptainer(), "--version")[1].split()
        return {
            "program": tools.apptainer(),
            "version": output[-1] if output else "",
            "mounted": _mounted(image),
            "rootless": os.geteuid() != 0,
        }


def _gpus(image: str) -> List[str]:
    """Return the options that show the GPUs, and have programs find their driver's libraries.

    What Apptainer has built does so by itself; a folder of other making, an engine's for one, does
    not.
    """
    if not os.path.isdir(image) or os.path.exists(os.path.join(image, _LOOKS_THERE)):
        return ["--nv"]
    return ["--nv", "--env", f"LD_LIBRARY_PATH={DRIVER}"]


def _passing(beginnings: Sequence[str]) -> List[str]:
    """Return words that show variables of these beginnings inside, by apptainer's own way.

    Their values are known only where the launcher has started this.
    """
    if not beginnings:
        return []
    both = " ".join(f'{prefix}ENV_\\1="$\\1"' for prefix in ("APPTAINER", "SINGULARITY"))
    script = f'eval "$({_oci.passing(beginnings, f"export {both}")})"; exec "$@"'
    return ["/bin/sh", "-c", script, "sh"]


def _kernel_mounts() -> bool:
    """Return whether the kernel mounts a SIF: root, or setuid whose configuration lets it."""
    return os.geteuid() == 0 or (_setuid() and _setuid_may_mount())


def _top() -> Optional[Path]:
    """Return the folder that the program is installed in (``<top>/bin/...``)."""
    found = shutil.which(tools.apptainer() or tools.APPTAINERS[0])
    return Path(found).resolve().parent.parent if found else None


def _setuid() -> bool:
    """Return whether the program's starter is installed setuid root."""
    top = _top()
    for name in tools.APPTAINERS if top else ():
        with contextlib.suppress(OSError):
            starter = os.stat(f"{top}/libexec/{name}/bin/starter-suid")
            if starter.st_uid == 0 and starter.st_mode & stat.S_ISUID:
                return True
    return False


def _setuid_may_mount() -> bool:
    """Return whether the configuration lets the setuid starter have the kernel mount squashfs.

    Since 1.3 it does so, by default, only where the site limits which containers may run; before,
    there was no such setting, and it always did.
    """
    top = _top()
    for name in tools.APPTAINERS:
        for folder in (f"{top}/etc/{name}", f"{ETC}/{name}"):
            if text := probes.read(Path(folder, f"{name}.conf")):
                rows = (line.partition("=") for line in text.splitlines() if line[:1] != "#")
                settings = {key.strip(): value.strip().lower() for key, _, value in rows}
                return _allowed(settings, probes.read(Path(folder, "ecl.toml")))
    return True


def _allowed(settings: Mapping[str, str], ecl: str) -> bool:
    answer = settings.get("allow setuid-mount squashfs", "yes")
    if answer != "iflimited":
        return answer == "yes"
    limits = {value for key, value in settings.items() if key.startswith("limit container ")}
    return bool(limits - {"", "null"}) or bool(_ECL_ACTIVE.search(ecl))


def _mounted(image: str) -> str:
    if not image:
        return ""
    if os.path.isdir(image):
        return "sandbox directory"
    return "kernel squashfs" if _kernel_mounts() else "squashfuse"


def data_images() -> str:
    """Return what mounts a filesystem image of data: ``squashfs`` (kernel), or ``squashfuse``."""
    return "squashfs" if _kernel_mounts() else "squashfuse"


BACKEND = RuntimeBackend(
    Apptainer, "Apptainer or Singularity: a SIF or a folder, no root needed", isolated=True,
    data_images=data_images, no_overlay="", takes=("sif", "rootfs"),
    apart=lambda case: "",
)  # fmt: skip
