"""What this host allows a container: user namespaces, FUSE, limits; and short commands asked."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Dict, Mapping, Optional, Sequence, Tuple, Union

USERNS_MAX = Path("/proc/sys/user/max_user_namespaces")
USERNS_DEBIAN = Path("/proc/sys/kernel/unprivileged_userns_clone")
USERNS_APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
CGROUPS = Path("/sys/fs/cgroup")
SHARED_MEMORY = "/dev/shm"
_PROBE_S = 30.0
#: Where batch systems write a job's number: Slurm, PBS, LSF, Flux, OAR, Cobalt, Grid Engine.
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "FLUX_ENCLOSING_ID", "OAR_JOB_ID",
         "COBALT_JOBID", "JOB_ID")  # fmt: skip
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
    gid, pids = os.getegid(), int(read("/proc/sys/kernel/pid_max") or 32768)
    return Host(
        uid=os.geteuid(),
        gid=gid,
        groups=tuple(sorted(set(os.getgroups()) - {gid})),
        name=socket.gethostname(),
        open_files=_limit(resource.RLIMIT_NOFILE),
        processes=min(n for n in (*_limit(resource.RLIMIT_NPROC), pids) if n > 0),
        shm_bytes=shared_memory()[0],
    )


def job() -> str:
    """Return the number of the batch job that this process is of; "" for none."""
    return next((value for name in _JOBS if (value := os.environ.get(name, ""))), "")[:60]


def shared_memory() -> Tuple[int, int]:
    """Return capacity and free bytes of /dev/shm; (0, 0) if there is none."""
    try:
        status = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0, 0
    return status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail


def _limit(which: int) -> Tuple[int, int]:
    soft, hard = resource.getrlimit(which)
    return tuple(-1 if n == resource.RLIM_INFINITY else n for n in (soft, hard))  # type: ignore[return-value]


def ask(
    argv: Sequence[str],
    timeout_s: Optional[float] = _PROBE_S,
    *,
    env: Optional[Mapping[str, str]] = None,
) -> Tuple[int, str]:
    """Run a short command; return (exit status, its output, or the last line of its complaint).

    ``env``: its whole environment; None: this process's.  Never raises: 127 where the program is
    not there, 124 where it did not answer in time.
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
    except subprocess.TimeoutExpired:
        return 124, f"{argv[0]} did not answer in {timeout_s:g} s"
    except OSError as error:
        return 124, str(error)
    out, err = (_COLOURS.sub("", text).strip() for text in (done.stdout, done.stderr))
    if done.returncode == 0:
        return 0, out or err
    return done.returncode, last_lines(err or out) or f"exit status {done.returncode}"


def last_lines(text: str, count: int = 1) -> str:
    """Return the last lines of a program's output that are not blank, as one line; "" for none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines[-count:])


def user_namespaces() -> str:
    """Return why this user can make no user namespace, with the remedy; "" when it can."""
    if ask([sys.executable, "-I", "-S", "-c", _UNSHARE])[0] == 0:
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
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except PermissionError:
        return "/dev/fuse is closed to this user: have an administrator run `chmod 666 /dev/fuse`"
    except OSError as error:
        return f"/dev/fuse cannot be opened ({error.strerror}): `modprobe fuse` as administrator"
    return ""


def hybrid_cgroups() -> bool:
    """Return whether version 2 holds some controllers beside version 1: crun refuses that."""
    return bool(read(CGROUPS / "unified/cgroup.controllers"))


def read(path: Union[str, Path]) -> str:
    """Return a small file's text without blanks around it; "" when it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def absent(path: str) -> str:
    """Return that a path is not on this node; "" where it is."""
    return "" if os.path.exists(path) else f"there is no {path}: do all nodes see its filesystem?"


def fields(text: str) -> Dict[str, str]:
    """Return the lines ``key: value`` of a text, as /proc has them."""
    rows = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in rows}


@functools.lru_cache(maxsize=64)
def asked_once(*argv: str) -> Tuple[int, str]:
    """Return :func:`ask`, remembered: what cannot change while a suite runs."""
    return ask(argv)
