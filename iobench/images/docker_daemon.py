"""The Docker daemon: one that answers is used, else a private one is started and stopped.

A private one has its own socket, its own store below the images folder, no bridge and no firewall
rule.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from iobench.core.clock import clock
from iobench.core.errors import ImageError
from iobench.core.protocols import Say
from iobench.host.mounts import MOUNTINFO, parse
from iobench.host.probes import last_lines, read

#: Where a private daemon keeps images and build steps, below the images folder.
STORE = ".docker"
#: Names, in the store, the folder that a daemon keeps its socket and state in.
_STATE = "state"
_ANSWER_S, _START_S, _STOP_S = 5.0, 60.0, 30.0
_PR_SET_PDEATHSIG = 1


def docker_answers() -> str:
    """Return "" when a Docker daemon answers (DOCKER_HOST, or the usual socket), else why not."""
    import docker

    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        if address.startswith("unix://"):  # docker-py would leave a socket open if nobody listens
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(address.removeprefix("unix://"))
        with contextlib.closing(docker.from_env(timeout=_ANSWER_S)) as client:
            client.ping()
    except (docker.errors.DockerException, OSError) as error:
        return _short(error)
    return ""


def possible() -> bool:
    """Return whether a Docker daemon answers, or could be started by this user."""
    startable = os.geteuid() == 0 and shutil.which("dockerd") and not os.environ.get("DOCKER_HOST")
    return bool(startable) or not docker_answers()


@contextlib.contextmanager
def docker(say: Say, folder: Path = Path("images")) -> Iterator[None]:
    """Make a Docker daemon answer inside this context.

    One that answers already is left alone.  Else, as root and where dockerd is installed, a private
    one is started, ``DOCKER_HOST`` names its socket, and it is stopped at the end: after an
    exception too, and by the kernel when this process is killed.  Raises ImageError with the remedy
    when neither is possible, or the daemon does not start.
    """
    reason = docker_answers()
    if not reason:
        yield
        return
    _check_startable(reason)
    store = folder.resolve() / STORE
    store.mkdir(parents=True, exist_ok=True)
    _clear_stale(store / "dockerd.pid")
    _clear_left(store / _STATE)
    # A socket's path holds at most 107 bytes, so it cannot lie in the (arbitrarily deep) store.
    short = Path(tempfile.mkdtemp(prefix="iobench-docker-", dir="/tmp"))
    (store / _STATE).write_text(str(short))
    daemon: subprocess.Popen[bytes] | None = None
    try:
        say(f"no Docker daemon answers: starting a private one (its store: {store})")
        daemon = _start(store, short)
        with environment({"DOCKER_HOST": f"unix://{short / 'sock'}"}):
            _wait(daemon, store)
            yield
    finally:
        if daemon is not None:
            _stop(daemon)
            say("stopped the private Docker daemon")
        _unmount_below(short)
        shutil.rmtree(short, ignore_errors=True)
        (store / _STATE).unlink(missing_ok=True)


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process for a library that starts programs by itself."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)


def _check_startable(reason: str) -> None:
    if os.environ.get("DOCKER_HOST"):
        raise ImageError(
            f"the Docker daemon that DOCKER_HOST={os.environ['DOCKER_HOST']} names does not answer "
            f"({reason}): start it, or unset DOCKER_HOST"
        )
    if shutil.which("dockerd") is None:
        raise ImageError(
            f"no Docker daemon answers ({reason}) and no dockerd is installed: as root "
            "`requirements/install.sh containers`, or build where Docker is and bring images/*.tar "
            "here (docs/containers.md has routes without Docker)"
        )
    if os.geteuid() != 0:
        raise ImageError(
            f"no Docker daemon answers this user ({reason}): ask for it to be started "
            "(`systemctl start docker`) and for the group docker, or take a route without Docker "
            "(docs/containers.md)"
        )


def _start(store: Path, short: Path) -> subprocess.Popen[bytes]:
    argv = ["dockerd", "--host", f"unix://{short / 'sock'}", "--data-root", str(store / "data")]
    argv += ["--exec-root", str(short / "exec"), "--pidfile", str(store / "dockerd.pid")]
    # Containers get no network or the host's: nothing of the host's own network is changed.
    argv += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"]
    with open(store / "dockerd.log", "wb") as log:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for us: the daemon is stopped last
            preexec_fn=die_with_parent,
        )


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends, however that does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(daemon: subprocess.Popen[bytes], store: Path) -> None:
    deadline = clock() + _START_S
    while docker_answers():
        if daemon.poll() is not None or clock() > deadline:
            log = store / "dockerd.log"
            last = last_lines(log.read_text(errors="replace"))[:300] or "it printed nothing"
            raise ImageError(f"dockerd did not start: {last} (all of it: {log})")
        time.sleep(0.2)


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        daemon.wait(_STOP_S)
    daemon.kill()  # nothing where it has ended
    daemon.wait()


def _unmount_below(folder: Path) -> None:
    """Unmount what dockerd leaves mounted in its state folder: the host's network namespace."""
    for mount in parse(MOUNTINFO.read_text()):
        if mount.mount_point.startswith(f"{folder}/"):
            subprocess.run(
                ["umount", "--lazy", mount.mount_point], capture_output=True, check=False
            )


def _clear_stale(pidfile: Path) -> None:
    """Remove the pid file of a daemon that was killed; one that runs is another iobench's."""
    pid = read(pidfile)
    if read(f"/proc/{pid}/comm") == "dockerd":
        raise ImageError(
            f"another iobench's private Docker daemon (pid {pid}) uses {pidfile.parent}: wait for "
            "it to end, or choose another folder by --images"
        )
    pidfile.unlink(missing_ok=True)


def _clear_left(note: Path) -> None:
    """Remove the state folder of a daemon whose iobench was killed, and what is mounted there."""
    try:
        folder = Path(note.read_text())
        ours = folder.stat().st_uid == os.geteuid() and not folder.is_symlink()
    except (OSError, ValueError):
        return
    if ours and folder.parent == Path("/tmp") and folder.name.startswith("iobench-docker-"):
        _unmount_below(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _short(error: BaseException) -> str:
    words = str(error)
    if "No such file" in words or "Connection refused" in words:
        return "nobody listens at its socket"
    if "Permission denied" in words:
        return "permission denied on its socket"
    return words.replace("\n", " ")[:200]
