"""Hosts of a cluster on one machine: each a set of namespaces with its own name, address, processes
and /tmp, and an sshd.

A host's first process ends when its standard input closes, and the kernel then ends all others of
it: nothing is left of a test, however that ends. Needs root and Debian's openssh-server.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence

#: Reaps what is left to it; ends with whoever holds the other end of its standard input.
FIRST = """
import signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("up", flush=True)
sys.stdin.read()
"""
ROOT = Path(__file__).resolve().parents[2]
#: The shared folder and this checkout stay where they are below a /tmp of the host itself; a tmpfs
#: at /mnt is their way there.
SET_UP = """
set -e
hostname "$1"
mount -t tmpfs none /mnt
mkdir /mnt/shared /mnt/checkout
mount --bind "$2" /mnt/shared
mount --bind "$4" /mnt/checkout
mount -t tmpfs none /tmp
chmod 1777 /tmp
mkdir -p "$2" "$4"
mount --move /mnt/shared "$2"
mount --move /mnt/checkout "$4"
umount /mnt
mount -t tmpfs none /run
mkdir /run/sshd
mount --bind "$2/etc_hosts" /etc/hosts
ip link set lo up
ip addr add "$3/24" dev eth0
ip link set eth0 up
"""
SSHD = """
HostKey {0}/host_key
PidFile none
AuthorizedKeysFile {0}/key.pub
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
UsePAM no
UseDNS no
Subsystem sftp /usr/lib/openssh/sftp-server
"""
SSH = """
Host *
  User root
  IdentityFile {0}/key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


@dataclasses.dataclass
class Host:
    """One host; ``process`` is the first of its processes, ``pid`` its number out here."""

    name: str
    address: str
    process: subprocess.Popen[str]
    pid: int

    def enter(self, *command: str) -> List[str]:
        """Return a command that runs ``command`` on the host."""
        return ["nsenter", "-t", str(self.pid), "-n", "-u", "-m", "-p", "--", *command]

    def run(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on the host."""
        keys: Dict[str, Any] = {"capture_output": True, "text": True, "check": True, **options}
        return subprocess.run(self.enter(*command), **keys)

    def processes(self) -> Dict[int, str]:
        """Return pid, as numbered out here -> command line of every process there."""
        found = {}
        for path in sorted(Path("/proc").glob("[0-9]*")):
            with contextlib.suppress(OSError):
                if os.readlink(path / "ns/pid") == os.readlink(f"/proc/{self.pid}/ns/pid"):
                    words = (path / "cmdline").read_bytes().decode().split("\0")
                    found[int(path.name)] = " ".join(words).strip()
        return found

    def commands(self) -> List[str]:
        """Return the command lines of all processes there but the first and sshd's."""
        found = self.processes().values()
        return [c for c in found if c and "sshd" not in c and FIRST.strip() not in c]


@dataclasses.dataclass
class Hosts:
    """Hosts that share ``folder``; ``environment``: of a driver on one of them.

    ``switch``: a process in the network namespace that the hosts' cables lead to.
    """

    folder: Path
    hosts: List[Host]
    environment: Dict[str, str]
    switch: int

    @property
    def names(self) -> List[str]:
        return [host.name for host in self.hosts]

    def port(self, host: Host) -> str:
        """Return the name of a host's cable at the switch."""
        return f"v{1 + self.hosts.index(host)}"

    def at_switch(self, *command: str) -> str:
        """Run a command in the network namespace of the switch; return what it wrote."""
        entered = ["nsenter", "-t", str(self.switch), "-n", "--", *command]
        return subprocess.run(entered, check=True, stdout=subprocess.PIPE, text=True).stdout


@contextlib.contextmanager
def hosts(folder: Path, count: int = 2) -> Iterator[Hosts]:
    """Bring up hosts h1, h2, ... that reach one another, by ssh too, and share ``folder``.

    A Docker daemon of this machine is not theirs.
    """
    names = [f"h{i}" for i in range(1, count + 1)]
    _write_ssh(folder, names)
    with contextlib.ExitStack() as undo:
        switch = undo.enter_context(_first("-n"))
        _in(switch.pid, "ip", "link", "add", "br0", "type", "bridge")
        _in(switch.pid, "ip", "link", "set", "br0", "up")
        found = []
        for i, name in enumerate(names, 1):
            first = undo.enter_context(_first("-n", "-u", "-m", "-p", "--fork", "--mount-proc"))
            made = Host(name, f"10.77.9.{i}", first.process, first.pid)
            there = ["ip", "link", "add", f"v{i}", "type", "veth", "peer", "name", "eth0"]
            _in(switch.pid, *there, "netns", str(first.pid))
            _in(switch.pid, "ip", "link", "set", f"v{i}", "master", "br0", "up")
            made.run("sh", "-c", SET_UP, "sh", name, str(folder), made.address, str(ROOT))
            made.run("/usr/sbin/sshd", "-f", f"{folder}/sshd_config", "-E", f"{folder}/{name}.log")
            found.append(made)
        remote = f"ssh -F {folder}/ssh_config"
        for host in found:
            asked = (*remote.split(), host.name, "true")
            until(functools.partial(_answers, found[0], asked))
        environment = {
            **{name: value for name, value in os.environ.items() if name != "DOCKER_HOST"},
            "OMPI_MCA_plm_rsh_agent": remote,
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": str(folder / "remote"),  # one word
        }
        yield Hosts(folder, found, environment, switch.pid)


def _answers(host: Host, command: Sequence[str]) -> bool:
    return host.run(*command, check=False).returncode == 0


def _write_ssh(folder: Path, names: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for key in ("host_key", "key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(command, check=True)
    rows = ["127.0.0.1 localhost", *(f"10.77.9.{i} {name}" for i, name in enumerate(names, 1))]
    (folder / "etc_hosts").write_text("\n".join(rows) + "\n")
    (folder / "sshd_config").write_text(SSHD.format(folder))
    (folder / "ssh_config").write_text(SSH.format(folder))
    (folder / "remote").write_text(f'#!/bin/sh\nexec ssh -F {folder}/ssh_config "$@"\n')
    (folder / "remote").chmod(0o755)


@dataclasses.dataclass
class _First:
    process: subprocess.Popen[str]
    pid: int


@contextlib.contextmanager
def _first(*unshared: str) -> Iterator[_First]:
    """Start a process in namespaces of its own; at the end they go with all that is in them."""
    process = subprocess.Popen(
        ["unshare", *unshared, "--", sys.executable, "-I", "-S", "-c", FIRST],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "up\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield _First(process, int(children[0]) if children else process.pid)
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


def _in(pid: int, *command: str) -> None:
    subprocess.run(["nsenter", "-t", str(pid), "-n", "--", *command], check=True)


def until(true: Callable[[], Any], limit_s: float = 60.0, every_s: float = 0.05) -> None:
    """Wait until something is true; it is asked every ``every_s`` seconds."""
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end
        time.sleep(every_s)
