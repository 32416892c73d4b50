"""A filesystem that does not answer, signals, and a driver that is killed: somebody answers."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from iobench.data import make
from tests.build import fuse
from tests.capabilities import need, squashfuse

RUN = [sys.executable, "-m", "iobench.cli", "run", "smoke"]
#: A command that says when it is there, and which process it is.
SLEEPER = """
import os, sys, time
from iobench.cli.watch import watched
def command():
    print(os.getpid(), flush=True)
    try:
        {body}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        return 130
    return 0
sys.exit(watched(command))
"""


def started(words: list[str], **kwargs: object) -> subprocess.Popen[str]:
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **kwargs)  # type: ignore[call-overload,no-any-return]


def sleeper(body: str) -> subprocess.Popen[str]:
    return started([sys.executable, "-c", SLEEPER.format(body=body)])


def gone(pid: int) -> bool:
    """Return whether a process ends within some seconds."""
    for _ in range(100):
        state = Path(f"/proc/{pid}/stat")
        with contextlib.suppress(OSError):
            if state.read_text().rpartition(")")[2].split()[0] not in "ZX":
                time.sleep(0.1)
                continue
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_command(number: signal.Signals) -> None:
    body = "import signal; signal.signal(15, signal.default_int_handler); time.sleep(60)"
    with sleeper(body) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        time.sleep(0.5)
        process.send_signal(number)
        assert process.stdout.read() == "interrupted\n"
    assert process.returncode == 130
    assert gone(child)


def test_a_signal_while_the_command_ends_changes_nothing() -> None:
    thread = (
        "import threading; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    with sleeper(f"{thread}; import atexit; atexit.register(os.kill, os.getpid(), 2)") as process:
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_the_command_does_not_outlive_its_watcher() -> None:
    with sleeper("time.sleep(60)") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert child != process.pid
        process.kill()
    assert gone(child)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGHUP])
def test_the_watcher_ends_as_the_command_does(number: signal.Signals) -> None:
    with sleeper(f"os.kill(os.getpid(), {int(number)}); time.sleep(60)") as process:
        process.communicate()
    assert process.returncode == -number


@contextlib.contextmanager
def silent(folder: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """Yield a mount of some JPEG files and its daemon, which is stopped."""
    need("fuse")
    tree, mount, image = folder / "made" / "jpeg", folder / "mount", folder / "image"
    make.make("smoke", folder / "made", samples=64, workers=1)
    mount.mkdir()
    subprocess.run(["mksquashfs", tree, image, "-quiet", "-no-progress"], check=True)
    with started([str(squashfuse()), "-f", str(image), str(mount)]) as daemon:
        try:
            while not os.path.ismount(mount):
                time.sleep(0.05)
            daemon.send_signal(signal.SIGSTOP)
            yield mount, daemon
        finally:
            daemon.send_signal(signal.SIGCONT)
            umount = shutil.which("fusermount3") or shutil.which("fusermount") or "umount"
            flags = ["-u"] if umount.endswith(("fusermount", "fusermount3")) else []
            subprocess.run([umount, *flags, mount], check=True)


def until(process: subprocess.Popen[str], words: str) -> str:
    """Return the line of standard error that has these words."""
    assert process.stderr is not None
    for line in process.stderr:
        if re.search(words, line):
            return str(line)
    raise AssertionError(f"it ended and did not say {words!r}")


def unanswered(mount: Path) -> str:
    """Return what is said of this mount; others may be silent meanwhile, and are named too."""
    return f"the filesystem at {re.escape(str(mount))} .fuse.* has not answered for"


def run(folder: Path, mount: Path) -> subprocess.Popen[str]:
    words = [*RUN, "--data", str(mount), "--out", "out", "--results", "results"]
    return started(words, cwd=folder, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_a_mount_that_is_silent_is_named_and_waited_for(tmp_path: Path) -> None:
    with silent(tmp_path) as (mount, daemon), run(tmp_path, mount) as process:
        until(process, unanswered(mount))
        daemon.send_signal(signal.SIGCONT)
        until(process, f"the filesystem at {mount} answers again, after")
        assert "VALID" in process.communicate()[0]
    assert process.returncode == 0


@pytest.mark.slow
def test_a_user_who_does_not_wait_for_a_silent_mount_is_heard(tmp_path: Path) -> None:
    with silent(tmp_path) as (mount, _), run(tmp_path, mount) as process:
        until(process, unanswered(mount))
        process.send_signal(signal.SIGINT)
        until(process, "interrupted while a filesystem did not answer; .*same command")
        assert process.wait(30) == 130
    left = subprocess.run(["pgrep", "-f", f"--data {mount}"], capture_output=True, text=True)
    assert not left.stdout


@contextlib.contextmanager
def suite(folder: Path, out: Path, results: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the smallest suite; it does not outlive a test that fails."""
    words = [*RUN, "--out", str(out), "--results", str(results)]
    with started(words, cwd=folder, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def stop_at(process: subprocess.Popen[str], mount: fuse.Mounted, results: Path, name: str) -> None:
    """Stop the daemon of a mount as soon as the latest suite has such a file."""
    while not any(results.glob(f"latest/{name}")):
        assert process.poll() is None, f"it ended before it had written {name}"
        time.sleep(0.01)
    mount.daemon.send_signal(signal.SIGSTOP)


@pytest.mark.slow
def test_results_on_a_mount_that_is_silent_are_waited_for(tmp_path: Path) -> None:
    with fuse.mounted(tmp_path / "fuse") as mount:
        results = mount.path / "results"
        with suite(tmp_path, tmp_path / "out", results) as process:
            stop_at(process, mount, results, "runs/*.json")
            until(process, unanswered(mount.path))
            mount.daemon.send_signal(signal.SIGCONT)
            until(process, f"the filesystem at {mount.path} answers again, after")
            assert "VALID" in process.communicate()[0]
            assert process.returncode == 0
        assert (results / "latest" / "report.html").exists()


@pytest.mark.slow
def test_results_on_a_silent_mount_go_on_after_an_interruption(tmp_path: Path) -> None:
    with fuse.mounted(tmp_path / "fuse") as mount:
        results = mount.path / "results"
        with suite(tmp_path, tmp_path / "out", results) as process:
            stop_at(process, mount, results, "runs/*.json")
            until(process, unanswered(mount.path))
            process.send_signal(signal.SIGINT)
            line = until(process, "interrupted while a filesystem did not answer")
            assert process.wait(60) == 130
        mount.daemon.send_signal(signal.SIGCONT)
        command = re.search(f"`(iobench run --resume --results {results}[^`]*)`", line)
        assert command, line
        before = {path: path.read_bytes() for path in results.glob("*/runs/*.json")}
        again = [sys.executable, "-m", "iobench.cli", *command[1].split()[1:]]
        done = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert {path: path.read_bytes() for path in before} == before
    left = subprocess.run(["pgrep", "-f", str(results)], capture_output=True, text=True)
    assert not left.stdout


@pytest.mark.slow
def test_a_report_is_written_while_the_mount_of_the_data_is_silent(tmp_path: Path) -> None:
    with fuse.mounted(tmp_path / "fuse") as mount:
        results = tmp_path / "results"
        with suite(tmp_path, mount.path / "out", results) as process:
            stop_at(process, mount, results, "trials.csv")
            until(process, unanswered(mount.path))
            assert "</html>" in (results / "latest" / "report.html").read_text()
            mount.daemon.send_signal(signal.SIGCONT)
            assert "report: " in process.communicate()[0]
            assert process.returncode == 0
