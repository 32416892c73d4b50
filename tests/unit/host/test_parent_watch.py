"""A rank's hold on its driver: processes really end, whatever they are at."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.build.ranks import HEAD, ROOT
from tests.capabilities import need

RANK = """
import ctypes, os, subprocess, sys
from iobench.host import parent_watch
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])  # a loader process
parent_watch.end_when_closed(int(sys.argv[1]))
print(child.pid, flush=True)
ctypes.PyDLL(None).sleep(60)  # a long call that holds the interpreter
"""


def start(end: int, *before: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-c", RANK, str(end)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[end],
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def pair(kind: str) -> tuple[int, int]:
    """Return (the rank's end, the driver's end)."""
    if kind == "pipe":
        return os.pipe()
    if kind == "unix":
        ends = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ends = socket.create_connection(listener.getsockname()), listener.accept()[0]
    return ends[0].detach(), ends[1].detach()


def gone(pid: int) -> bool:
    """Tell whether a process has ended, waiting for it."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("kind", ["pipe", "unix", "tcp"])
def test_when_the_driver_goes_a_rank_ends_with_all_it_started(kind: str) -> None:
    end, held = pair(kind)
    rank = start(end)
    os.close(end)
    assert rank.stdout is not None
    child = int(rank.stdout.readline())
    assert rank.poll() is None
    os.close(held)  # what the kernel does for a driver that was killed
    assert rank.wait(20) == -signal.SIGKILL
    assert gone(child)
    rank.stdout.close()


@pytest.mark.parametrize("kind", ["pipe", "unix", "tcp"])
def test_a_rank_that_comes_after_the_driver_went_ends_at_once(kind: str) -> None:
    end, held = pair(kind)
    os.close(held)
    rank = start(end)
    os.close(end)
    assert rank.wait(20) == -signal.SIGKILL
    assert rank.stdout is not None
    assert rank.stdout.read() == ""
    rank.stdout.close()


def test_the_first_process_of_a_container_ends_with_all_others() -> None:
    """No SIGKILL from within its own process namespace reaches it."""
    need("root")
    if shutil.which("unshare") is None:
        pytest.skip("no program unshare")
    end, held = pair("unix")
    rank = start(end, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    os.close(end)
    assert rank.stdout is not None
    rank.stdout.readline()
    inside = psutil.Process(rank.pid).children(recursive=True)
    assert len(inside) == 2
    os.close(held)
    rank.wait(20)
    assert all(gone(process.pid) for process in inside)
    rank.stdout.close()


DRIVER = """
import sys, time
from pathlib import Path
from tests.build.ranks import started
with started(Path(sys.argv[1]), [sys.argv[2]]) as worker:
    worker.wait_ready()
    worker.release()
    (Path(sys.argv[1]) / "begun").touch()
    worker.results()
"""


def test_kill_9_of_the_driver_ends_a_rank_in_a_long_call(tmp_path: Path) -> None:
    rank = f"""{HEAD}
driver, task = rendezvous.join(path)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(path)])
driver.send(Ready())
driver.expect(Go)
ctypes.PyDLL(None).sleep(60)"""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path), rank],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    def others() -> list[psutil.Process]:
        every = psutil.process_iter(["cmdline"])
        return [p for p in every if str(tmp_path) in str(p.info) and p.pid != driver.pid]

    while not (tmp_path / "begun").exists():
        assert driver.poll() is None
        time.sleep(0.02)
    left = others()
    assert len(left) == 2, "the rank and the process that it started"
    driver.kill()
    driver.wait()
    assert all(gone(process.pid) for process in left)
