"""What the runtimes' files share: facts of this host, cheap probes, how an OCI start is written.

Worker side: standard library only, Python 3.9.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import List, Mapping, Optional, Sequence, Tuple

from iobench.errors import SpecError
from iobench.protocols import WORK_INSIDE, Mount, Start

#: The image's own Python, at the same place in every form of the image.
PYTHON_INSIDE = "/opt/iobench/bin/python3"
#: Programs that a worker may start inside are looked for here.
PATH_INSIDE = "/opt/iobench/bin:/usr/local/bin:/usr/bin:/bin"
USERNS_MAX = Path("/proc/sys/user/max_user_namespaces")
USERNS_DEBIAN = Path("/proc/sys/kernel/unprivileged_userns_clone")
USERNS_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
CGROUPS = Path("/sys/fs/cgroup")
#: Root inside may write these though it has no capability: the files belong to root.
KERNEL_FILES = ("/proc/sys", "/sys")
SYSTEMD = Path("/run/systemd/system")
_PROBE_S = 30.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
#: unshare(CLONE_NEWUSER): what every container without root begins with.
_UNSHARE = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x10000000) != 0)"


@dataclasses.dataclass(frozen=True)
class Host:
    """Who calls, and what a container is given the same of.  (soft, hard) limits; -1: none."""

    uid: int
    gid: int
    groups: Tuple[int, ...]  # beside gid
    name: str
    open_files: Tuple[int, int]
    processes: int  # no more than there are process ids
    shm_bytes: int  # capacity of /dev/shm; 0: there is none


def host() -> Host:
    """Return the facts of the calling process and its machine."""
    try:
        shm = os.statvfs("/dev/shm")
        shm_bytes = shm.f_frsize * shm.f_blocks
    except OSError:
        shm_bytes = 0
    gid = os.getegid()
    return Host(
        uid=os.geteuid(),
        gid=gid,
        groups=tuple(sorted(set(os.getgroups()) - {gid})),
        name=socket.gethostname(),
        open_files=_limit(resource.RLIMIT_NOFILE),
        processes=min(n for n in (*_limit(resource.RLIMIT_NPROC), _pids()) if n > 0),
        shm_bytes=shm_bytes,
    )


def _limit(which: int) -> Tuple[int, int]:
    soft, hard = resource.getrlimit(which)
    return tuple(-1 if n == resource.RLIM_INFINITY else n for n in (soft, hard))  # type: ignore[return-value]


def _pids() -> int:
    return int(read(Path("/proc/sys/kernel/pid_max")) or 32768)


# -- how an OCI runtime's start is written ---------------------------------------------------


def oci_run(start: Start, facts: Host, *, user: str, gpu: Sequence[str]) -> List[str]:
    """Return the options of ``docker run`` and ``podman run``, from ``run`` to the image.

    No capability, no new privilege, no network, nothing writable but /tmp and the mounts that say
    so; the limits, the name and the shared memory of the host.  Standard input stays connected.
    """
    words = ["run", "--rm", "--interactive", "--pull=never", "--log-driver=none"]
    if start.name:
        words.append(f"--name={start.name}")
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
    shm_bytes = start.shm_bytes or facts.shm_bytes
    words += [f"--shm-size={shm_bytes}"] if shm_bytes else []
    words += [f"--cpus={start.cpus:g}"] if start.cpus else []
    if start.memory_bytes:  # without swap: else a limit only moves pages out
        words += [f"--memory={start.memory_bytes}", f"--memory-swap={start.memory_bytes}"]
    words += gpu if start.gpus else []
    words += [f"--mount={mount_option(mount)}" for mount in start.mounts]
    words += [f"--env={name}={value}" for name, value in start.env.items()]
    return [*words, *workdir("--workdir={}", start), "--entrypoint=", start.image]


def shm_of(megabytes: int) -> int:
    """Return the option ``shm_mb`` in bytes.  Raises SpecError for a size that cannot be."""
    if not 0 <= megabytes < 1 << 30:
        raise SpecError(f"shm_mb {megabytes} is no size of /dev/shm; write MiB, or 0: the host's")
    return megabytes << 20


def mount_option(mount: Mount) -> str:
    """Return a ``--mount`` value of docker and podman (comma-separated, quoted as CSV is)."""
    fields = ["type=bind", f"source={mount.host}", f"target={mount.inside}"]
    fields += [] if mount.writable else ["readonly"]
    return ",".join(_csv(field) for field in fields)


def _csv(field: str) -> str:
    if any(c in field for c in ',"\n'):
        return '"' + field.replace('"', '""') + '"'
    return field


def workdir(option: str, start: Start) -> List[str]:
    """Return the words that begin in the work folder, where it is shown at its place."""
    shown = any(mount.inside == WORK_INSIDE for mount in start.mounts)
    return [option.format(WORK_INSIDE)] if shown else []


def inner_env(start: Start, *flags: str) -> List[str]:
    """Return ``env NAME=value ...`` to put before the command inside.

    For runtimes whose own options split values at commas or keep HOME for themselves.
    """
    return ["/usr/bin/env", *flags, *(f"{k}={v}" for k, v in start.env.items())]


# -- probes ----------------------------------------------------------------------------------


def ask(
    argv: Sequence[str], timeout_s: float = _PROBE_S, *, env: Optional[Mapping[str, str]] = None
) -> Tuple[int, str]:
    """Run a short command; return (exit status, its output, or the last line of its complaint).

    ``env``: its whole environment; None: this process's.

    Never raises: 127 where the program is not there, 124 where it did not answer in time.
    """
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=env,
            check=False,
        )
    except FileNotFoundError:
        return 127, f"no program {argv[0]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return 124, str(error)
    out, err = (_COLOURS.sub("", text).strip() for text in (done.stdout, done.stderr))
    if done.returncode == 0:
        return 0, out or err
    lines = (err or out).splitlines()
    return done.returncode, lines[-1] if lines else f"exit status {done.returncode}"


def user_namespaces() -> str:
    """Return why this user can make no user namespace, with the remedy; "" when it can."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _UNSHARE], capture_output=True, check=False
    )
    if done.returncode == 0:
        return ""
    for knob, bad, remedy in (
        (USERNS_MAX, "0", "sysctl -w user.max_user_namespaces=15000"),
        (USERNS_DEBIAN, "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        (USERNS_APPARMOR, "1", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
    ):
        if read(knob) == bad:
            return (
                f"user namespaces are switched off ({knob} is {bad}): have an administrator run "
                f"`{remedy}`, or use a runtime that the site installed with privileges"
            )
    return (
        "the kernel refuses a user namespace to this user: ask the administrator for "
        "unprivileged user namespaces (inside a container: its seccomp profile forbids them)"
    )


def fuse() -> str:
    """Return why this user cannot mount through FUSE, with the remedy; "" when it can."""
    if not os.path.exists("/dev/fuse"):
        return "no /dev/fuse: have an administrator run `modprobe fuse`"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is closed to this user: have an administrator run `chmod 666 /dev/fuse`"
    return ""


def hybrid_cgroups() -> bool:
    """Tell whether version 2 holds some controllers beside version 1: crun refuses that."""
    return bool(read(CGROUPS / "unified/cgroup.controllers"))


def podman(oci_runtime: str = "") -> List[str]:
    """Return ``podman`` with the options that this host needs; all calls must use the same.

    ``oci_runtime``: "" is podman's own choice, or runc where crun is known to refuse.
    """
    words = ["podman"]
    if not oci_runtime and hybrid_cgroups() and shutil.which("runc", path=_wide_path()):
        oci_runtime = "runc"
    words += [f"--runtime={oci_runtime}"] if oci_runtime else []
    if not SYSTEMD.is_dir():
        words += ["--cgroup-manager=cgroupfs", "--events-backend=none"]
    if os.geteuid() != 0 and not _storage_is_chosen():
        words.append("--storage-driver=overlay")  # else vfs: every start copies the image
    return words


def docker_maps() -> str:
    """Return how the docker daemon maps user ids: ``rootless``, ``userns`` (remap), "": not."""
    code, said = asked_once("docker", "info", "--format", "{{.SecurityOptions}}")
    found = re.findall(r"name=(rootless|userns)\b", said) if code == 0 else []
    return found[0] if found else ""


def _wide_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def _storage_is_chosen() -> bool:
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return bool(
        os.environ.get("STORAGE_DRIVER")
        or os.environ.get("CONTAINERS_STORAGE_CONF")
        or (own / "containers/storage.conf").exists()
    )


def read(path: Path) -> str:
    """Return a small file's text without blanks around it; "" when it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@functools.lru_cache(maxsize=64)
def asked_once(*argv: str) -> Tuple[int, str]:
    """Return :func:`ask`, remembered: what cannot change while a suite runs."""
    return ask(argv)
