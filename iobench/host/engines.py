"""How docker and podman must be called on this host, and what killed drivers left with them.

Containers and images that iobench makes carry a label that names their driver's process.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from pathlib import Path
from typing import List, Optional, Sequence

from iobench.host import filesystems, locks
from iobench.host.probes import ask, asked_once, hybrid_cgroups

SYSTEMD = Path("/run/systemd/system")
#: Forms of image that an engine keeps in a store of its own, on each node.
FORMS = ("docker", "podman")
#: :func:`store_filesystem` of a store on this machine's own disks or in its memory; "": of none.
OF_THIS_MACHINE = ("", "posix", "tmpfs")
#: Names the driver of a container or image that iobench makes.
LABEL = "iobench.driver"


def podman(oci_runtime: str = "") -> List[str]:
    """Return ``podman`` with the options that this host needs; all calls must use the same.

    ``oci_runtime``: "" is podman's own choice, or runc where crun is known to refuse.
    """
    words = ["podman"]
    wide = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    if not oci_runtime and hybrid_cgroups() and shutil.which("runc", path=wide):
        oci_runtime = "runc"
    words += [f"--runtime={oci_runtime}"] if oci_runtime else []
    if not SYSTEMD.is_dir():
        words += ["--cgroup-manager=cgroupfs", "--events-backend=none"]
    if os.geteuid() != 0 and not _storage_is_chosen():
        words.append("--storage-driver=overlay")  # else vfs: every start copies the image
    return words


def docker_maps() -> str:
    """Return how the docker daemon maps user ids: ``rootless``, ``userns`` (remap), "": not."""
    code, output = asked_once("docker", "info", "--format", "{{.SecurityOptions}}")
    found = re.findall(r"name=(rootless|userns)\b", output) if code == 0 else []
    return found[0] if found else ""


def store(engine: str) -> Optional[Path]:
    """Return where docker or podman keeps images and upper layers, as far as this user may look.

    None for another runtime, and where the engine does not say it.
    """
    words = {
        "docker": ["docker", "info", "--format", "{{.DockerRootDir}}"],
        "podman": [*podman(), "info", "--format", "{{.Store.GraphRoot}}"],
    }.get(engine)
    code, output = asked_once(*words) if words else (1, "")
    if code or not output.startswith("/"):
        return None
    path = Path(output)
    return next((p for p in (path, *path.parents) if os.access(p, os.X_OK)), Path("/"))


def store_filesystem(engine: str) -> str:
    """Return the filesystem member of :func:`store`; "" where that is not known."""
    path = store(engine)
    return filesystems.filesystem_for(path)[0] if path else ""


def owner() -> str:
    """Return the label ``NAME=VALUE`` of what this process makes."""
    return f"{LABEL}={_process(os.getpid())}"


def left(program: Sequence[str], kind: str) -> List[str]:
    """Return the engine's containers, or images (``kind``: container, image), of gone processes.

    A container may be stopped for its turn when its driver and all that watches over it are ended
    at one blow, as when a batch system ends a job's control group: the engine's are in another.
    """
    listing = {"container": ["ps", "--all"], "image": ["images"]}[kind]
    code, output = ask([*program, *listing, f"--filter=label={LABEL}", "--format={{.ID}}"])
    show = f'--format={{{{index .Config.Labels "{LABEL}"}}}}'
    labels = {
        name: ask([*program, "inspect", f"--type={kind}", show, name])
        for name in (output.split() if code == 0 else ())
    }
    return [name for name, (code, label) in labels.items() if code == 0 and _gone(label.strip())]


def _process(pid: int) -> str:
    """Return which process this is, of any that run here ever: where it is, its id, its start."""
    return f"{_space()}/{pid}/{locks.ticks(pid)}"


def _space() -> str:
    """Return node, PID namespace and user: whose processes are surely seen from here."""
    return f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino}/{os.getuid()}"


def _gone(process: str) -> bool:
    """Return whether a process ended; one of another node, namespace or user may not be seen."""
    space, _, pid = process.rpartition("/")[0].rpartition("/")
    return space == _space() and pid.isdigit() and _process(int(pid)) != process


def _storage_is_chosen() -> bool:
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return bool(
        os.environ.get("STORAGE_DRIVER")
        or os.environ.get("CONTAINERS_STORAGE_CONF")
        or (own / "containers/storage.conf").exists()
    )
