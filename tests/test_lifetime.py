"""A rank's hold on its driver: processes really end, and ranks really meet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from iobench import lifetime

RANK = """
import subprocess, sys, time
from pathlib import Path
from iobench import lifetime
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])  # a loader process
lifetime.end_with_driver(Path(sys.argv[1]))
print(child.pid, flush=True)
import ctypes
ctypes.PyDLL(None).sleep(60)  # a long call that holds the interpreter
"""


def start(held: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RANK, str(held)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


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


def test_when_the_driver_goes_a_rank_ends_with_all_it_started(tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    end = os.open(held, os.O_RDWR)
    rank = start(held)
    assert rank.stdout is not None
    child = int(rank.stdout.readline())
    assert rank.poll() is None
    os.close(end)  # what the kernel does for a driver that was killed
    assert rank.wait(20) == -signal.SIGKILL
    assert gone(child)
    rank.stdout.close()


def test_a_rank_that_comes_after_the_driver_went_ends_at_once(tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    rank = start(held)
    assert rank.wait(20) == -signal.SIGKILL
    assert rank.stdout is not None
    assert rank.stdout.read() == ""
    rank.stdout.close()


def test_without_a_fifo_it_is_no_ranks_business(tmp_path: Path) -> None:
    assert not lifetime._end_with_fifo(tmp_path / "held")


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_meet(size: int, tmp_path: Path) -> None:
    met: list[int] = []

    def come(rank: int) -> None:
        lifetime.meet(tmp_path, rank, size)
        met.append(rank)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(size)]
    for thread in threads[:-1]:
        thread.start()
    time.sleep(0.05)
    assert met == []
    threads[-1].start()
    for thread in threads:
        thread.join(20)
    assert sorted(met) == list(range(size))


def test_ranks_agree_on_what_rank_0_says(tmp_path: Path) -> None:
    said: dict[int, int] = {}

    def ask(rank: int) -> None:
        said[rank] = lifetime.agree(tmp_path, rank, 10 + rank)

    others = [threading.Thread(target=ask, args=(rank,)) for rank in (1, 2)]
    for thread in others:
        thread.start()
    ask(0)
    for thread in others:
        thread.join(20)
    assert said == {0: 10, 1: 10, 2: 10}
