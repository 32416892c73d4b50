"""How docker and podman must be called on this host."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import List

from iobench.host.probes import asked_once, hybrid_cgroups

SYSTEMD = Path("/run/systemd/system")


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


def _storage_is_chosen() -> bool:
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return bool(
        os.environ.get("STORAGE_DRIVER")
        or os.environ.get("CONTAINERS_STORAGE_CONF")
        or (own / "containers/storage.conf").exists()
    )
